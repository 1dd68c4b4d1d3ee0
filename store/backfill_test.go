package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// "Created at t or later": the event that was created at t is the first.
func TestABackfillFromATimeBeginsWithTheEventOfThatVeryTime(t *testing.T) {
	r := newRig(t)
	id := r.append("r", "t", "t", "t")
	start := get[time.Time](r, "select created_at from keyline.events where record_id = $1 and seq = 2", id)
	c := r.register(definition("c", from(keylinetype.At(start))))
	r.sweepAll()
	if row := r.row(id, c); row == nil || row.Seq != 1 || row.LiveFrom != 3 {
		t.Errorf("row %+v", row)
	}
}

// Older than the start and not settled: without a row the consumer would stand
// at the cursor, and be given what is not for it.
func TestABackfillFromATimeSkipsOldEventsThatAreStillToBeSettled(t *testing.T) {
	r := newRig(t)
	other := r.register(definition("other"))
	r.sweepAll()
	fresh, behind := r.append("fresh", "t", "t"), r.append("behind", "t", "t", "t")
	// On one nothing has been done, on the other a consumer waits for its retry.
	c := r.claimOne(behind)
	r.flush1(core.Flush{Record: behind, Token: c.Token, Head: 3, Cursor: 3, Then: core.HandBack, DueAt: r.clock.Now().Add(time.Hour),
		Upserts: []core.Checkpoint{backoff(other, 0, 1, r.clock.Now().Add(time.Hour))}})
	start := get[time.Time](r, "select clock_timestamp() + interval '1 second'")
	consumer := r.register(definition("c", from(keylinetype.At(start))))
	r.sweepAll()
	for id, head := range map[int64]int64{fresh: 2, behind: 3} {
		if row := r.row(id, consumer); row == nil || row.Seq != head {
			t.Errorf("record %d: row %+v, want one at %d", id, row, head)
		}
	}
	if row := r.row(behind, other); row == nil || row.Seq != 0 || row.State != core.Backoff {
		t.Errorf("another consumer's row: %+v", row)
	}
}

// A backfill that is repeated (its worker died after a chunk, before it could
// say so) finds its rows, perhaps further on by now, and leaves them.
func TestABackfillLeavesRowsAloneThatAreThere(t *testing.T) {
	r := newRig(t)
	r.settled("r", 3, 5)
	c := r.register(definition("c", from(keylinetype.Beginning())))
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state, live_from) values ($1, $2, 4, 'ready', 2)", r.record("r1"), c)
	r.sweepAll()
	for key, want := range map[string]string{"r0": "0 of 5", "r1": "4 of 2", "r2": "0 of 5"} {
		row := r.row(r.record(key), c)
		if got := fmt.Sprint(row.Seq, " of ", row.LiveFrom); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}

// Two workers never do the same consumer's chunk, and neither waits for the other.
func TestASweeperPassesAConsumerOverThatAnotherIsAt(t *testing.T) {
	r := newRig(t)
	a := r.register(definition("a"))
	r.register(definition("b"))
	other := r.begin()
	r.in(other, "select from keyline.consumers where id = $1 for no key update", a)
	r.sweepAll()
	if n := r.count("consumers", "sweep is null"); n != 1 {
		t.Errorf("%d sweeps are done, beside one that another is at", n)
	}
	r.commit(other)
	r.sweepAll()
	if n := r.count("consumers", "sweep is not null"); n != 0 {
		t.Errorf("%d sweeps are left", n)
	}
}

// Appenders to 2,000 records, in a transaction that stays open: it takes
// nothing away from anybody else.
func TestATransactionOverManyRecordsKeepsNobodyElseWaiting(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.sweepAll()
	const n = 2000
	if err := r.BareSeed(t.Context(), "held", n, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '1 hour'")
	mine := r.claimOne(r.record("held7"))
	open := r.begin()
	r.in(open, "select keyline.append('held' || i, 't', '{}') from generate_series(0, $1) i", n-1)
	r.in(open, "select keyline.append('new' || i, 't', '{}') from generate_series(1, 500) i")

	free := r.append("free")
	if got := r.claims(r.me, 10); len(got) != 1 || got[0].Record != free {
		t.Errorf("claimed %v", got)
	}
	// Its own holder hears that an appender is there, and can give the record up.
	if res := r.flush1(settleAt(mine, 1)); !res.Busy {
		t.Errorf("%+v", res)
	}
	if res := r.flush1(core.Flush{Record: mine.Record, Token: mine.Token, Head: 1, Cursor: 1, Then: core.Release,
		Upserts: []core.Checkpoint{backoff(c, 0, 1, r.clock.Now().Add(time.Hour))}}); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
	if _, _, err := r.NextDue(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := r.Recover(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := r.HandBackOrphans(t.Context(), r.me, nil); err != nil {
		t.Error(err)
	}
	r.register(definition("d", from(keylinetype.Beginning())))
	r.sweepAll()
	if n := r.count("consumers", "name = 'd' and status = 'active'"); n != 0 {
		t.Error("the backfill is over, though records are held")
	}
	r.commit(open)
	r.sweepAll()
	if n := r.count("consumers", "name = 'd' and status = 'active' and sweep is null"); n != 1 {
		t.Error("the backfill does not end")
	}
	r.noneStranded()
}
