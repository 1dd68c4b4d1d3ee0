package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/keylinetype"
)

func from(s keylinetype.Start) func(*Definition) { return func(d *Definition) { d.Start = s } }

// settled makes n settled records.
func (r *rig) settled(prefix string, n, events int) {
	r.Helper()
	if err := r.BareSeed(r.Context(), prefix, n, events); err != nil {
		r.Fatal(err)
	}
	r.exec("update keyline.records set cursor = head where record_key like $1 || '%'", prefix)
	r.exec("delete from keyline.mailboxes m using keyline.records r where r.id = m.record_id and r.record_key like $1 || '%'", prefix)
}

func (r *rig) statusOf(name string) core.Status { r.Helper(); return named(r.registry(), name).Status }

func (r *rig) setStatus(name string, to core.Status) {
	r.Helper()
	if err := r.SetStatus(r.Context(), name, to, "op", "test"); err != nil {
		r.Fatal(err)
	}
}

func TestAChangeMakesAllRecordsWithWorkDueForEverybody(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	const n = 3 * sweepChunk / 2
	if err := r.BareSeed(t.Context(), "r", n, 1); err != nil {
		t.Fatal(err)
	}
	due := func() int64 {
		return get[int64](r, "select count(*) from keyline.mailboxes where claimed_by is null and due_at <= clock_timestamp() and wants is null")
	}
	hide := func() {
		r.exec("update keyline.mailboxes set due_at = 'infinity', wants = '{1}', wants_due_at = clock_timestamp() + interval '1 hour' where claimed_by is null")
	}
	claimed := r.claimOne(r.record("r7"))
	for i, change := range []func(){
		func() { r.setStatus("c", core.Paused) }, // whom its failure held back goes on
		func() { r.setStatus("c", core.Active) },
		func() { r.register(definition("c", revision(2))) },
		func() { r.register(definition("d")) },
		func() { r.setStatus("c", core.Disabled) },
		func() { r.setStatus("c", core.Active) },
		func() { r.setStatus("c", core.Retired) },
		func() {
			if err := r.Register(t.Context(), nil, keylinetype.Lockstep); err != nil {
				t.Fatal(err)
			}
		},
	} {
		hide()
		change()
		r.sweepAll()
		if got := due(); got != n-1 {
			t.Errorf("change %d: %d of %d due", i, got, n-1)
		}
	}
	if r.mailbox(claimed.Record) != "claimed" || get[int64](r, "select token from keyline.mailboxes where record_id = $1", claimed.Record) != claimed.Token {
		t.Error("a claim was touched: its holder hears of the epoch")
	}
	if n := get[int64](r, "select count(*) from keyline.consumers where sweep is not null") + get[int64](r, "select count(*) from keyline.sweep_left"); n != 0 {
		t.Errorf("%d sweeps unfinished", n)
	}
}

func TestAChangeDuringASweepIsSweptFromTheStart(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	const n = 2 * sweepChunk
	if err := r.BareSeed(t.Context(), "r", n, 1); err != nil {
		t.Fatal(err)
	}
	hide := func() { r.exec("update keyline.mailboxes set due_at = 'infinity'") }
	hide()
	r.register(definition("c", revision(2)))
	if more, err := r.Sweep(t.Context()); !more || err != nil {
		t.Fatal(more, err) // it has passed the first records
	}
	hide()
	r.register(definition("c", revision(3)))
	r.sweepAll()
	if got := get[int64](r, "select count(*) from keyline.mailboxes where due_at <= clock_timestamp()"); got != n {
		t.Errorf("%d of %d due", got, n)
	}
}

func TestAResumedConsumersRecordsComeBack(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.setStatus("c", core.Paused)
	r.sweepAll()
	const n = sweepChunk + 10
	r.settled("r", n, 2)
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) select id, $1, case when id % 2 = 0 then 1 else 2 end, 'ready' from keyline.records", c)
	r.setStatus("c", core.Active)
	r.sweepAll()
	behind, boxes := get[int64](r, "select count(*) from keyline.checkpoints where seq < 2"), get[int64](r, "select count(*) from keyline.mailboxes where due_at <= clock_timestamp()")
	if behind < n/2-1 || boxes != behind {
		t.Errorf("%d records due, behind on %d", boxes, behind)
	}
	r.exec("delete from keyline.mailboxes")
	r.setStatus("c", core.Paused)
	r.sweepAll()
	if n := get[int64](r, "select count(*) from keyline.mailboxes"); n != 0 {
		t.Errorf("a pause woke %d records that have nothing to do", n)
	}
}

func TestADisabledConsumersRowsGoAndItComesBackAtTheCursor(t *testing.T) {
	r := newRig(t)
	c, d := r.register(definition("c")), r.register(definition("d"))
	r.sweepAll()
	const n = sweepChunk + 10
	r.settled("r", n, 2)
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) select id, consumer, 1, 'ready' from keyline.records, unnest(array[$1, $2]::integer[]) consumer", c, d)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select id, 1, $1, gen_random_uuid(), 1, 'permanent', 'x', now(), now() from keyline.records limit 1`, c)
	// A HandleTx transaction holds one of its rows.
	tx := r.begin()
	r.in(tx, "update keyline.checkpoints set attempt = 1 where consumer_id = $1 and record_id = (select max(record_id) from keyline.checkpoints)", c)
	r.setStatus("c", core.Disabled)
	r.sweepAll()
	rows := func(consumer int32) int64 {
		return get[int64](r, "select count(*) from keyline.checkpoints where consumer_id = $1", consumer)
	}
	if rows(c) != 1 || rows(d) != n {
		t.Errorf("%d and %d rows left", rows(c), rows(d))
	}
	if err := r.SetStatus(t.Context(), "c", core.Active, "op", ""); !errors.Is(err, keylinetype.ErrConflict) {
		t.Errorf("enabled while rows are left: %v", err)
	}
	r.commit(tx)
	r.sweepAll()
	if rows(c) != 0 || rows(d) != n || get[int64](r, "select count(*) from keyline.dead_letters where status = 'open'") != 1 {
		t.Errorf("%d and %d rows left", rows(c), rows(d))
	}
	r.setStatus("c", core.Active)
	r.sweepAll()
	if n := get[int64](r, "select count(*) from keyline.mailboxes"); n != 0 {
		t.Errorf("%d records have work for a consumer that came back at the cursor", n)
	}
}

func TestABackfillWritesEveryRecordsRowAndThenActivates(t *testing.T) {
	r := newRig(t)
	const n = 2*sweepChunk + 10
	r.settled("r", n, 3)
	c := r.register(definition("c", from(keylinetype.Beginning())))
	if r.statusOf("c") != core.Backfilling {
		t.Fatalf("status %s", r.statusOf("c"))
	}
	before := r.epoch()
	for i := 0; r.statusOf("c") == core.Backfilling; i++ {
		if n := get[int64](r, "select count(*) from keyline.mailboxes"); n != 0 {
			t.Fatalf("%d mailboxes before it is active", n)
		}
		if more, err := r.Sweep(t.Context()); err != nil || (!more && r.statusOf("c") == core.Backfilling) || i > 20 {
			t.Fatal(more, err)
		}
	}
	if got := get[int64](r, "select count(*) from keyline.checkpoints where consumer_id = $1 and seq = 0 and live_from = 3 and state = 'ready'", c); got != n || r.epoch() <= before {
		t.Errorf("%d of %d rows, epoch %d after %d", got, n, r.epoch(), before)
	}
	r.sweepAll()
	if got := get[int64](r, "select count(*) from keyline.mailboxes where due_at <= clock_timestamp()"); got != n {
		t.Errorf("%d of %d records due", got, n)
	}
	l := r.load(r.claimOne(r.record("r5")))
	if !slices.Equal(seqs(l.Events), []int64{1, 2, 3}) || l.Base != 3 {
		t.Errorf("base %d, events %v", l.Base, seqs(l.Events))
	}
}

func TestABackfillFromATimeStartsAtTheFirstEventFromThenOn(t *testing.T) {
	r := newRig(t)
	r.settled("old", 1, 2)
	r.settled("new", 1, 2)
	id := r.append("across", "t")
	testdb.Eventually(t, func() bool { return get[bool](r, "select clock_timestamp() > max(created_at) from keyline.events") }, "the clock to move")
	start := get[time.Time](r, "select clock_timestamp()")
	r.append("across", "t", "t")
	r.append("new0", "t")
	c := r.register(definition("c", from(keylinetype.At(start))))
	r.sweepAll()
	rows := map[string]string{}
	for _, key := range []string{"old0", "new0", "across"} {
		rows[key] = get[string](r, "select seq || ' of ' || live_from from keyline.checkpoints where record_id = $1 and consumer_id = $2", r.record(key), c)
	}
	// Nothing of old0 is from then on, and it is settled: the cursor says where the consumer stands.
	want := map[string]string{"old0": "", "new0": "2 of 3", "across": "1 of 3"}
	if fmt.Sprint(rows) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", rows, want)
	}
	if r.statusOf("c") != core.Active || r.mailbox(id) != "due" {
		t.Errorf("status %s, mailbox %q", r.statusOf("c"), r.mailbox(id))
	}
}

func TestABackfillComesBackToRecordsThatAppendersHold(t *testing.T) {
	r := newRig(t)
	const n = sweepChunk + 20
	r.settled("r", n, 1)
	held := []string{"r3", "r4", keyOf(n - 1)}
	var open []pgx.Tx
	for _, key := range held {
		open = append(open, r.opened(key))
	}
	fresh := r.opened("fresh") // a record that is not there yet
	c := r.register(definition("c", from(keylinetype.Beginning())))
	r.sweepAll()
	rows := func() int64 {
		return get[int64](r, "select count(*) from keyline.checkpoints where consumer_id = $1", c)
	}
	if r.statusOf("c") != core.Backfilling || rows() != n-3 {
		t.Fatalf("status %s, %d rows", r.statusOf("c"), rows())
	}
	if n := get[int64](r, "select count(*) from keyline.sweep_left"); n != 3 {
		t.Errorf("%d records left", n)
	}
	// Another consumer's sweep does not wait for this one.
	r.register(definition("d"))
	r.sweepAll()
	if get[int64](r, "select count(*) from keyline.consumers where name = 'd' and sweep is null") != 1 {
		t.Error("another consumer's sweep waits")
	}
	for i, tx := range open {
		r.commit(tx)
		r.sweepAll()
		if last := i == len(open)-1; last != (r.statusOf("c") == core.Active) {
			t.Errorf("%d committed: status %s", i+1, r.statusOf("c"))
		}
	}
	if rows() != n {
		t.Errorf("%d of %d rows", rows(), n)
	}
	// What was appended meanwhile is above live_from or not, but it is delivered after the old.
	l := r.load(r.claimOne(r.record("r3")))
	if !slices.Equal(seqs(l.Events), []int64{1, 2}) {
		t.Errorf("events %v", seqs(l.Events))
	}
	// The record that came afterwards has no row: the consumer stands at its beginning.
	r.commit(fresh)
	l = r.load(r.claimOne(r.record("fresh")))
	if l.Base != 0 || len(l.Checkpoints) != 0 || !slices.Equal(seqs(l.Events), []int64{1}) {
		t.Errorf("%+v", l)
	}
}

func TestARecordMadeLateWithASmallIdIsNotLostToABackfill(t *testing.T) {
	r := newRig(t)
	late := r.opened("late") // draws its id now
	r.settled("r", sweepChunk+1, 1)
	r.register(definition("c", from(keylinetype.Beginning())))
	if _, err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.commit(late) // below the sweep's position
	r.sweepAll()
	l := r.load(r.claimOne(r.record("late")))
	at := l.Base
	for _, c := range l.Checkpoints {
		at = c.Seq
	}
	if r.statusOf("c") != core.Active || at != 0 {
		t.Errorf("status %s, position %d", r.statusOf("c"), at)
	}
}

func TestAWakeSweepComesBackToLockedRecords(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	id, other := r.append("r"), r.append("other")
	r.exec("update keyline.mailboxes set due_at = 'infinity', wants = '{1}', wants_due_at = 'infinity'")
	tx := r.begin()
	r.in(tx, "select from keyline.records where id = $1 for no key update", id)
	r.register(definition("d"))
	r.sweepAll()
	if r.mailbox(id) != "held" || r.mailbox(other) != "due" {
		t.Errorf("mailboxes %q, %q", r.mailbox(id), r.mailbox(other))
	}
	r.rollbackTx(tx)
	r.sweepAll()
	if r.mailbox(id) != "due" {
		t.Errorf("mailbox %q", r.mailbox(id))
	}
}

func TestManySweepersDoEachChunkOnceAndBackfillsEnd(t *testing.T) {
	r := newRig(t)
	const n = 4 * sweepChunk
	r.settled("r", n, 1)
	r.register(definition("a", from(keylinetype.Beginning())), definition("b", from(keylinetype.Beginning())))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 2 {
		w := on(t, r.db)
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if _, err := w.Sweep(ctx); err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Go(func() { // appends to old and new records meanwhile
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := r.pool.Exec(ctx, "select keyline.append($1, 't', '{}')", keyOf(i*37%(n+500))); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	testdb.Eventually(t, func() bool {
		return get[int64](r, "select count(*) from keyline.consumers where status = 'active' and sweep is null") == 2
	}, "both backfills to end")
	cancel()
	wg.Wait()
	if n := get[int64](r, `select count(*) from keyline.records r cross join keyline.consumers c
		where r.cursor > 0 and not exists (select from keyline.checkpoints k where k.record_id = r.id and k.consumer_id = c.id)`); n != 0 {
		t.Errorf("%d old records without a row", n)
	}
	if n := get[int64](r, "select count(*) from keyline.records r where not exists (select from keyline.mailboxes m where m.record_id = r.id)"); n != 0 {
		t.Errorf("%d records with work and no mailbox", n)
	}
}

func TestAnOperatorMayEndABackfill(t *testing.T) {
	r := newRig(t)
	r.settled("r", sweepChunk+1, 1)
	c := r.register(definition("c", from(keylinetype.Beginning())))
	if _, err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.setStatus("c", core.Disabled)
	r.sweepAll()
	if n := get[int64](r, "select count(*) from keyline.checkpoints where consumer_id = $1", c); n != 0 || r.statusOf("c") != core.Disabled {
		t.Errorf("%d rows, status %s", n, r.statusOf("c"))
	}
	// An activation that an operator has overtaken changes nothing.
	before := r.epoch()
	if err := r.activate(t.Context(), c); err != nil || r.statusOf("c") != core.Disabled || r.epoch() != before {
		t.Errorf("%v, status %s", err, r.statusOf("c"))
	}
}

// Whoever keeps sweeping looks when it is told that the registry may have changed, and else seldom.
func TestASweepBeginsWithTheNewsOfAChange(t *testing.T) {
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r := newRig(t, func(c *Config) { c.Clock = fake })
	r.register(definition("c"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	var told atomic.Bool
	told.Store(true)
	go func() { r.KeepSweeping(ctx, told.Load); close(ended) }()
	swept := func() bool { left, err := r.Sweeping(t.Context()); return err == nil && !left }
	testdb.Eventually(t, swept, "what was there at its start")
	asleep := func() { // until the time comes, through the pauses of its walk at the start
		for pause := walkPause; pause != sweepSeldom; {
			var err error
			if pause, err = fake.BlockUntilDue(t.Context(), walkPause, sweepSeldom); err != nil {
				t.Fatal(err)
			}
			if pause == walkPause {
				fake.Advance(walkPause)
			}
		}
	}
	to := core.Active
	for _, news := range []struct {
		what  string
		bring func()
	}{
		{"a wake", r.AskSweep},
		{"another epoch", func() {
			if _, err := r.Registry(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{"the time", func() { fake.Advance(sweepSeldom) }},
	} {
		asleep()
		// What it is now is known, and not asked for: reading the registry is news of the change before.
		if to == core.Active {
			to = core.Paused
		} else {
			to = core.Active
		}
		r.setStatus("c", to)
		fake.Advance(sweepSoon)
		if swept() {
			t.Errorf("before %s it has looked", news.what)
		}
		news.bring()
		testdb.Eventually(t, swept, "a sweep after "+news.what)
	}
	told.Store(false)
	r.AskSweep() // it looks once more, and from then on soon
	testdb.Eventually(t, func() bool {
		if r.statusOf("c") == core.Paused && swept() {
			r.setStatus("c", core.Active)
		}
		fake.Advance(sweepSoon)
		return r.statusOf("c") == core.Active && swept()
	}, "a sweep where no news arrive")
}
