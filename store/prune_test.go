package store

import (
	"testing"
	"time"
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
