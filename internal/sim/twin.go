package sim

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Never is the twin's 'infinity'.
var Never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Defects switches rules of the twin off, one by one: a checker that does not
// notice is no checker.
type Defects struct {
	NoTokenCheck      bool // flush accepts any token
	NoHeadReread      bool // settle and hand-back trust the plan's head
	NoPendingReread   bool // settle trusts the plan's commands
	IgnoreEpoch       bool // flush passes the registry barrier unseen
	NoCrashCharge     bool // recovery never makes a suspect
	HandBackUnguarded bool // a hand-back does not look at the records row at all
	ForgiveAny        bool // an ended claim gives back what an earlier one wrote ahead
	NoResumeSweep     bool // a registry change does not make its records due
}

// Twin is an in-memory double of the store's tables and of the SQL functions
// that write them. It is not safe for concurrent use.
type Twin struct {
	Now     time.Time
	Defects Defects
	// Cut is how many events are read above a position before the answer is cut, as if they were large; 0: it is never.
	Cut int

	records     []*record // record id is index+1
	checkpoints map[pair]core.Checkpoint
	startedBy   map[pair]int64 // the claims that wrote attempts ahead
	dead        []*DeadRow
	failures    map[attemptKey]core.Failure
	skips       map[attemptKey]core.Skip
	commands    []*CommandRow
	workers     []*workerRow // id is index+1
	consumers   []*consumerRow
	ordering    keylinetype.Ordering
	epoch       int64
	tokens      int64
	eventIDs    uint64
}

type pair struct {
	record   int64
	consumer int32
}

type attemptKey struct {
	pair
	seq     int64
	attempt int
}

// record is a records row with its events and its mailbox.
type record struct {
	id      int64
	key     keylinetype.Key
	head    int64 // 0: not committed yet
	cursor  int64
	events  []core.Event
	mailbox *Mailbox
	// open is the appender that holds the row's lock.
	open *Appending
	// shared counts the HandleTx transactions that hold the mailbox for key share.
	shared int
}

// Mailbox is a mailboxes row.
type Mailbox struct {
	DueAt      time.Time
	ClaimedBy  int64
	ClaimedAt  time.Time
	Token      int64
	Cursor     int64
	Crashes    int
	Unclean    bool
	Wants      []int32
	WantsDueAt time.Time
}

// DeadRow is a dead_letters row.
type DeadRow struct {
	core.DeadRetry
	Reason   core.DeadReason
	Status   core.DeadRetryStatus
	FailedAt time.Time

	startedBy int64 // the claim that wrote the attempt ahead
}

// CommandRow is a commands row.
type CommandRow struct {
	core.Command
	Applied bool
	Done    bool
	Detail  string
}

type workerRow struct {
	status string // live, left, lost
	beat   int64
	lease  time.Duration
	// keeps is until when recovery leaves its claims alone: handlers of it ran on when it left.
	keeps time.Time
}

// NewTwin makes an empty store at a time.
func NewTwin(now time.Time, ordering keylinetype.Ordering) *Twin {
	return &Twin{
		Now: now, ordering: ordering, epoch: 1,
		checkpoints: map[pair]core.Checkpoint{}, startedBy: map[pair]int64{},
		failures: map[attemptKey]core.Failure{},
		skips:    map[attemptKey]core.Skip{},
	}
}

func (t *Twin) record(id int64) *record {
	if id < 1 || id > int64(len(t.records)) {
		return nil
	}
	return t.records[id-1]
}

func (t *Twin) nextToken() int64 {
	t.tokens++
	return t.tokens
}

// base is the position of every consumer without a row.
func (r *record) base() int64 {
	if r.mailbox != nil {
		return max(r.cursor, r.mailbox.Cursor)
	}
	return r.cursor
}

// Position is a consumer's flushed position on a record.
func (t *Twin) Position(recordID int64, consumer int32) int64 {
	if c, ok := t.checkpoints[pair{recordID, consumer}]; ok {
		return c.Seq
	}
	return t.record(recordID).base()
}

// Holds reports whether this worker and token are a record's claim.
func (t *Twin) Holds(worker, recordID, token int64) bool {
	r := t.record(recordID)
	return r != nil && r.mailbox != nil && r.mailbox.ClaimedBy == worker && r.mailbox.Token == token
}

// makeDue makes a mailbox exist and, if unclaimed, due now. The caller holds
// the record's row lock.
func (t *Twin) makeDue(r *record) {
	if r.mailbox == nil {
		r.mailbox = &Mailbox{DueAt: t.Now}
		return
	}
	r.mailbox.wakeAt(t.Now)
}

// wakeAt is what append and make_due do to a mailbox that is there.
func (m *Mailbox) wakeAt(at time.Time) {
	if m.ClaimedBy == 0 && (m.DueAt.After(at) || m.Wants != nil) {
		m.DueAt, m.Wants, m.WantsDueAt = at, nil, time.Time{}
	}
}
