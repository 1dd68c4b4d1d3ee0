package core

import (
	"slices"
	"time"
)

// Loaded is what a claim's holder reads about its record after the claim has
// committed, in one snapshot.
type Loaded struct {
	Claim
	Tenant, Key string
	Head        int64
	// Base is greatest(records.cursor, mailboxes.cursor): the position of every
	// consumer that has no row.
	Base int64
	// Epoch is the registry's when the record was read. Above that of the registry
	// to deliver by, the record is to be read again, after the registry.
	Epoch       int64
	Checkpoints []Checkpoint
	Commands    []Command
	Retries     []DeadRetry
	// Events are those above Base, and above each checkpoint row in the states
	// Ready, Backoff and Started, up to the request's limit for each; ascending by seq,
	// without repeats. More may exist: Head says.
	Events []Event
}

// LoadRequest asks for a record's state. Fenced records are left out of the answer.
type LoadRequest struct {
	Claim
	// Limit is the most events to read above each position. The largest of a call holds for all of it.
	Limit int
}

// EventRange asks for events of a record: those with From < seq <= From+Limit.
type EventRange struct {
	Record int64
	From   int64
	Limit  int
}

// Disposition is what becomes of the claim with a flush.
type Disposition int

// The dispositions.
const (
	// Keep: the holder goes on.
	Keep Disposition = iota
	// Settle: nothing is left to do: the mailbox goes, if head, commands and
	// dead letter retries, re-read under the records lock, agree.
	Settle
	// HandBack: release the claim with DueAt, Wants and WantsDueAt, under the
	// records lock with head and commands re-read, else the claim is kept.
	HandBack
	// Release: give up the claim without a look. Whatever is left, the record is due
	// at DueAt, but within a second; wants are cleared.
	Release
)

// Flush is all that a record's holder wants written, in one group commit. It is
// valid only while (Record, Token) is the worker's claim.
type Flush struct {
	Record int64
	Token  int64
	// Head is the head that the plan was made with.
	Head int64
	// Cursor is the record's new cursor: the highest position of any
	// participating consumer, never below the old one.
	Cursor int64
	// Upserts and Deletes change checkpoint rows; no consumer is in both.
	Upserts []Checkpoint
	Deletes []int32

	DeadLetters []DeadLetter
	DeadUpdates []DeadUpdate
	Failures    []Failure
	Skips       []Skip
	Applied     []AppliedCommand
	Counts      []Counts

	// Clear ends suspicion: crashes = 0, unclean = false.
	Clear bool

	Then Disposition
	// DueAt is the earliest next attempt of what is hosted here, zero: none
	// (for Release: zero means now).
	DueAt time.Time
	// Wants are consumers with work that are not hosted here; WantsDueAt is
	// when the earliest of it is due.
	Wants      []int32
	WantsDueAt time.Time
}

// WithoutTexts is what is written of an outcome whose texts the database has
// refused: it counts, with CodeUnwritable.
func (f *Flush) WithoutTexts() *Flush {
	bare := *f
	bare.DeadLetters, bare.DeadUpdates = slices.Clone(bare.DeadLetters), slices.Clone(bare.DeadUpdates)
	bare.Failures, bare.Skips, bare.Upserts = slices.Clone(bare.Failures), slices.Clone(bare.Skips), slices.Clone(bare.Upserts)
	bare.Applied = slices.Clone(bare.Applied)
	for i := range bare.DeadLetters {
		bare.DeadLetters[i].Code, bare.DeadLetters[i].Message = CodeUnwritable, ""
	}
	for i := range bare.DeadUpdates {
		bare.DeadUpdates[i].Code, bare.DeadUpdates[i].Message = CodeUnwritable, ""
		bare.DeadUpdates[i].Actor, bare.DeadUpdates[i].Note = "", ""
	}
	for i := range bare.Failures {
		bare.Failures[i].Code, bare.Failures[i].Message, bare.Failures[i].Stack = CodeUnwritable, "", ""
	}
	for i := range bare.Skips {
		bare.Skips[i].Reason = ""
	}
	for i := range bare.Applied {
		bare.Applied[i].Detail = ""
	}
	for i := range bare.Upserts {
		if bare.Upserts[i].ErrorCode != "" {
			bare.Upserts[i].ErrorCode = CodeUnwritable
		}
	}
	return &bare
}

// FlushStatus is a flush's result.
type FlushStatus int

// The results of a flush.
const (
	// FlushKept: written, the claim goes on (Keep, or a disposition that could
	// not be had: see Head, Pending, Busy).
	FlushKept FlushStatus = iota
	// FlushGone: written, and the claim has ended as asked.
	FlushGone
	// FlushFenced: the claim was lost; nothing was written.
	FlushFenced
	// FlushEpoch: the registry changed since the plan; nothing was written.
	FlushEpoch
)

// FlushResult answers one Flush.
type FlushResult struct {
	Record int64
	Token  int64
	Status FlushStatus
	// Head is the record's head as re-read under its lock; 0 where it was not read.
	Head int64
	// Pending is true where commands or dead letter retries wait: reload.
	Pending bool
	// Busy is true where an appender held the record's row: try again soon.
	Busy bool
	// Rewritten is true where the outcome could not be written as it was and
	// was booked without its texts, with CodeUnwritable.
	Rewritten bool
}

// Work is what a consumer is given to run: one delivery, or a batch of
// consecutive ones.
type Work struct {
	Record      int64
	Token       int64
	Consumer    *Consumer
	Events      []Event
	Attempt     int
	Redelivered bool
	// Checkpoint is the consumer's position and retry state as the run begins.
	Checkpoint Checkpoint
	// Fence is the seq of the consumer's row as the database has it, which
	// HandleTx expects there: passing over events may have left it behind Checkpoint.Seq.
	Fence int64
	// Dead is set where this is a dead letter's retry.
	Dead *DeadRetry
	// Replay is true where an operator asked for this delivery again.
	Replay bool
}

// Outcome is how a run of a handler ended.
type Outcome struct {
	Err error
	// Stack is set where the handler panicked; Err then carries the value.
	Stack string
	// Cancelled is true where the handler returned an error after the runtime
	// had cancelled its context, or where it cannot be known whether HandleTx has
	// committed: not charged.
	Cancelled bool
	// Fenced is true where HandleTx found the claim lost.
	Fenced bool
	// Booked is set where HandleTx has already written the outcome.
	Booked *Booking
}
