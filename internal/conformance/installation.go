package conformance

import (
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
)

// Lease is every worker's: long enough that no machine is slow enough to see it
// end, and shorter than the hour by which time is moved on.
const Lease = 50 * time.Minute

// Installation is a store with nothing in it, and what the suite needs beside
// internal/core's interfaces. What cannot be done fails the test, unless the method says otherwise.
type Installation interface {
	// Process is the store as another process has it, joined as a worker. It
	// hosts the consumers named, each with the revision that its code carries.
	Process(hosts map[string]int) Process
	// Now is the store's time; Advance moves it on, by whole hours.
	Now() time.Time
	Advance(time.Duration)
	// Append appends events in a transaction of its own, and returns the
	// record's id. The record must not be held by an open append.
	Append(key string, events ...sim.NewEvent) int64
	// Begin appends in a transaction that stays open and holds the record.
	Begin(key string, events ...sim.NewEvent) Appender
	// Register adds a consumer of revision 1, Revise rolls out its next revision.
	Register(core.Consumer) int32
	Revise(id int32, change func(*core.Consumer))
	// SetStatus is false where the change is refused.
	SetStatus(id int32, to core.Status) bool
	// Sweep does what registry changes have left, until nothing more can be done now.
	Sweep()
	// Command gives an operator's command, and returns its id.
	Command(core.Command) int64
	// Rows are the tables as they stand.
	Rows() sim.Rows
}

// Appender is an append in a transaction that has not ended.
type Appender interface {
	Commit()
	Rollback()
}

// Process is the store in one process.
type Process interface {
	core.Deliveries
	core.Leases
	// Worker is the incarnation that flushes and transactions are made for; Become changes it.
	Worker() int64
	Become(worker int64)
	// Apply flushes and waits for the answer. Where answers get lost, the flush
	// is carried out, its answer dropped, and it is sent again as the committer would.
	Apply(f core.Flush, epoch int64, lost bool) core.FlushResult
	// Transact runs a handler in a HandleTx transaction (package store's RunTx).
	Transact(w *core.Work, handler func() error, book func(error) core.Booking) core.Outcome
}

// New makes an installation for a test.
type New func(*testing.T) Installation
