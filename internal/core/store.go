package core

import (
	"context"
	"time"
)

// ClaimRequest asks for records with work.
type ClaimRequest struct {
	Worker int64
	Limit  int
	// Hosted are the consumers that this worker runs: it claims mailboxes that
	// want one of them.
	Hosted []int32
	// Unbounded looks at every due mailbox. Otherwise the call may begin at the due
	// time that claims of this or another worker have come to, and so skip the dead
	// index entries before it.
	Unbounded bool
	// Record, if not 0, is the one record to claim, due or not: a wake named it.
	Record int64
}

// Deliveries is the part of the store that record actors and the supervisor
// use. Every method is one short transaction (or several, each whole).
//
// Errors wrap keylinetype.ErrUnavailable where the connection failed and
// keylinetype.ErrFenced where the worker itself is no longer live.
type Deliveries interface {
	// Claim takes due records. Only after it has returned may Load be called:
	// a claim's own statement sees the past.
	Claim(context.Context, ClaimRequest) ([]Claim, error)
	// ClaimRecord takes the one record that the request names, and reads it as Load
	// does, in one round trip. Where it was taken and was not read whole, loaded is empty: Load is to read it.
	ClaimRecord(ctx context.Context, r ClaimRequest, limit int) (claims []Claim, loaded []Loaded, err error)
	// NextDue returns how long until the next unclaimed mailbox is due that
	// this worker could claim; ok is false, and d 0, where there is none.
	NextDue(ctx context.Context, hosted []int32) (d time.Duration, ok bool, err error)
	// Load reads claimed records; those whose claim was lost are left out.
	Load(context.Context, []LoadRequest) ([]Loaded, error)
	// LoadEvents reads more events of claimed records.
	LoadEvents(context.Context, []EventRange) ([]Event, error)
	// Flush hands a record's outcomes to the committer and returns at once; done
	// is called from the committer's goroutine, exactly once, when they are
	// durable or fenced. done must not block. A connection failure is retried
	// inside until it is known or the worker is fenced. The flush must not change before done is called.
	Flush(f *Flush, epoch int64, done func(FlushResult))
	// News reads the heads of resident records, whether commands wait on them,
	// and the registry's epoch. A dead letter's retry begins with a command.
	News(ctx context.Context, records []int64) (epoch int64, news []News, err error)
	// Registry reads the registered consumers.
	Registry(context.Context) (*Registry, error)
}

// News is what happened to a resident record.
type News struct {
	Record  int64
	Head    int64
	Pending bool
}

// Held names a claim that an actor or a call in flight still holds.
type Held struct {
	Record int64
	Token  int64
}

// Beat is a worker's heartbeat as an observer reads it.
type Beat struct {
	Worker int64
	Beat   int64
	Lease  time.Duration
	// Drain: an operator has asked it to finish what runs and leave.
	Drain bool
	// Gone: it is not live, and has claims that Recover is to free.
	Gone bool
}

// Leases is the part of the store that keeps workers alive and recovers the
// claims of lost ones. It has connections of its own, which no handler and no
// flush can starve.
type Leases interface {
	// Join registers a new incarnation and returns its id.
	Join(context.Context, Worker) (int64, error)
	// Renew moves the worker's beat; ErrFenced where it is no longer live. state is
	// published in the workers table (payload-free JSON).
	Renew(ctx context.Context, worker int64, state []byte) error
	// Beats reads the beats of all live workers, and of those that are gone and have claims yet.
	Beats(context.Context) ([]Beat, error)
	// MarkLost marks a worker lost if its beat is still the same, and ends its
	// database sessions. It leaves the claims to Recover.
	MarkLost(ctx context.Context, seen Beat) (marked bool, err error)
	// Recover frees every claim whose worker is not live, in chunks, and returns
	// how many. Records of lost workers are charged a crash each. What LeaveLater
	// keeps is left alone until its time.
	Recover(context.Context) (int, error)
	// Leave marks the worker as left: recovery charges its records nothing.
	Leave(ctx context.Context, worker int64) error
	// LeaveLater is Leave for a worker with handlers that still run: what it
	// has claimed stays claimed for a lease more, and is then recovered without a charge.
	LeaveLater(ctx context.Context, worker int64) error
	// HandBackOrphans frees every claim of the worker that is not in held, but for
	// those of the last second: their answer may be on its way.
	HandBackOrphans(ctx context.Context, worker int64, held []Held) (int, error)
}

// Arming is a session by which one idle worker becomes the sentinel. Two
// session-level advisory locks are taken, always in this order:
//
//   - the seat, known to workers alone: its one holder is elected, and acts on
//     notifications for all idle workers;
//   - the sleep lock, exclusive: while somebody holds or waits for it, an
//     appender's pg_try_advisory_xact_lock_shared on it fails, so the appender
//     notifies; and it is granted only after every transaction that decided
//     not to notify has ended.
//
// One lock would not do: while a long application transaction keeps the sleep
// lock from being granted, appenders already notify, and somebody must know
// that it is for him to listen.
//
// The session has all timeouts at 0 and is autocommit. No method is called
// concurrently with another, except Close. Only Release may connect or
// reconnect: Elect, Request and Ping must fail where the session that they
// speak of is gone, or a worker would believe in a lock that it has lost.
type Arming interface {
	// Elect asks for the seat and blocks until it is granted or ctx ends. A
	// blocked lock request is a statement with a snapshot, which keeps vacuum
	// back: callers bound it with ctx and ask again.
	Elect(ctx context.Context) error
	// Request asks for the sleep lock and blocks until it is granted or ctx
	// ends. Called only while the seat is held.
	Request(ctx context.Context) error
	// Release gives up both locks, held or not (a cancelled request may have
	// been granted all the same); it connects where it must. The first call of
	// a cycle. After any error of any method the state is unknown until it has
	// succeeded.
	Release(ctx context.Context) error
	// Ping keeps the session alive and finds out whether it is. crowded says that
	// transactions stand in line for the lock that NOTIFY takes at commit, of
	// which a server has one.
	Ping(ctx context.Context) (crowded bool, err error)
	// Close ends the session, and a blocked call with it.
	Close()
}
