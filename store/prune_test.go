package store

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/testdb"
)

func TestPruneReadsOnlyWhatItIsAbout(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"), definition("d"))
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.records set cursor = head")
	r.exec("delete from keyline.mailboxes")
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) select id, $1, 0, 'ready' from keyline.records where id % 4 = 0", c)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select id, 1, $1, gen_random_uuid(), 4, 'exhausted', 'x', now(), now() from keyline.records where id % 3 = 0`, c)
	r.exec(`insert into keyline.failures (record_id, seq, consumer_id, attempt, at, error_code) select id, 1, $1, 1, now() - interval '8 days', 'x' from keyline.records`, c)
	// One record with a long young stream behind an old event: how much is young must not matter.
	r.exec(`update keyline.records set head = 50001, cursor = 50001 where id = 1`)
	r.exec(`insert into keyline.events select 1, 1 + s, gen_random_uuid(), 't', 1, '{}', '{}', null, now(), clock_timestamp() + interval '1 hour' from generate_series(1, 50000) s`)
	before := r.clock.Now().Add(time.Minute)
	for _, statistics := range []string{"of empty tables", "of full tables"} {
		t.Run(statistics, func(t *testing.T) {
			r := r.sub(t)
			if statistics == "of full tables" {
				r.exec("analyze")
			}
			for _, apply := range []bool{false, true} {
				tx := r.begin()
				r.frugal(tx, "operate_prune_events", 4*pruneRecords, int64(0), before, pruneRecords, pruneEvents, apply, "me", "", int64(0))
				r.frugal(tx, "operate_prune_events", 4*pruneRecords, int64(50_000), before, pruneRecords, pruneEvents, apply, "me", "", int64(0))
				r.rollbackTx(tx)
			}
			tx := r.begin()
			r.frugal(tx, "operate_prune_failures", 2*pruneFailures, before, pruneFailures, "me", "", int64(0))
			r.frugal(tx, "operate_prune_workers", 0, before, pruneWorkers, "me", "", int64(0))
			r.rollbackTx(tx)
		})
	}
}

// A chunk ends at so many events; the records behind are not looked at for nothing, again and again.
func TestAPruneOfLongRecordsDoesNotLookAtThoseBehindAgainAndAgain(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	const records, events = 300, 100
	if err := r.BareSeed(t.Context(), "r", records, events); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.records set cursor = head")
	r.exec("delete from keyline.mailboxes")
	testdb.Eventually(t, func() bool {
		return get[bool](r, "select clock_timestamp() > max(created_at) + interval '1 millisecond' from keyline.events")
	}, "events to be old")
	// A session of its own, whose end makes its statistics known.
	pool, err := pgxpool.New(t.Context(), r.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	o, err := NewOperate(pool, r.Schema())
	if err != nil {
		t.Fatal(err)
	}
	looks := func() int64 {
		return get[int64](r, "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_all_tables where schemaname = 'keyline' and relname = 'records'")
	}
	before := looks()
	report, err := o.Prune(t.Context(), PruneOptions{OlderThan: time.Millisecond}, "me", "")
	if err != nil || report.Events != records*events || report.Records != records {
		t.Fatalf("%+v: %v", report, err)
	}
	pool.Close()
	testdb.Eventually(t, func() bool {
		return get[int64](r, "select n_tup_del from pg_stat_all_tables where schemaname = 'keyline' and relname = 'events'") == records*events
	}, "the statistics")
	if n := looks() - before; n > 8*records {
		t.Errorf("%d looks at %d records", n, records)
	}
}
