package keyline_test

import (
	"slices"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// verified is an installation with a bit of everything in it that is allowed:
// settled and waiting records, backoff, a parked head, a skip, a resolved and
// an open dead letter, a paused consumer.
func verified(t *testing.T) *testdb.DB {
	t.Helper()
	db, parks, waits, fine := testdb.New(t), newSwitched(), newSwitched(), newSeen()
	w := startWorker(t, db, keyline.Config{}, recording(fine, "fine"), recording(fine, "rests"), parks.consumer("parks", park), waits.consumer("waits", backoff))
	o := newOperator(t, db, keyline.RoleOperator)
	if err := o.PauseConsumer(t.Context(), "rests", ""); err != nil {
		t.Fatal(err)
	}
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1) // so that the second is of the second record
	appendN(t, db, "thing:2", 1)
	deadLetters(t, db, 2)
	appendN(t, db, "thing:1", 1) // last, as it uses up an id
	must(o.ResolveDeadLetter(t.Context(), 2, "enough"))(t)
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.checkpoints where state = 'backoff'") == 2 &&
			scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes where claimed_by is not null") == 0
	}, "all rest")
	stop(t, w)
	return db
}

func TestVerifyFindsNothingInAHealthyInstallation(t *testing.T) {
	t.Parallel()
	db := verified(t)
	var done, of int64
	v := must(newOperator(t, db, keyline.RoleViewer).Verify(t.Context(), keyline.VerifyOptions{Chunk: 1, Progress: func(d, o int64) { done, of = d, o }}))(t)
	if !v.OK || len(v.Checks) != 7 || done != 2 || of != 2 {
		t.Fatalf("%+v, %d of %d", v, done, of)
	}
}

func TestVerifyIsSafeBesideLiveTraffic(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	stumbles := failing("stumbles", func(c *keyline.Consumer) { c.OnDead, c.Retry = keyline.Park, quick() })
	startWorker(t, db, keyline.Config{}, recording(s, "c"), stumbles)
	o := newOperator(t, db, keyline.RoleViewer)
	const rounds = 10
	for range rounds {
		for _, key := range []string{"a", "b", "c"} {
			appendN(t, db, key, 3)
		}
		if v := must(o.Verify(t.Context(), keyline.VerifyOptions{Chunk: 1}))(t); !v.OK {
			t.Fatalf("%+v", v)
		}
	}
	s.wait(t, rounds*9)
}

// Promise: no false alarm about a claim that its worker's handlers may still
// keep, or that has yet to be recovered: for a lease after the worker's end there is none.
func TestVerifyGivesTheClaimsOfALostWorkerALease(t *testing.T) {
	t.Parallel()
	db := verified(t)
	const claim = `update keyline.workers set ended_at = clock_timestamp(), lease = '1 hour' where id = 1;
		update keyline.mailboxes set claimed_by = 1, claimed_at = now(), wants = null, wants_due_at = null where record_id = 1`
	if _, err := db.Connect().PgConn().Exec(t.Context(), claim).ReadAll(); err != nil {
		t.Fatal(err)
	}
	o := newOperator(t, db, keyline.RoleViewer)
	if v := must(o.Verify(t.Context(), keyline.VerifyOptions{}))(t); !v.OK {
		t.Errorf("%+v", v)
	}
}

func TestVerifySeesEachCorruption(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, check, corrupt string }{
		{"an event is missing", "seqs_gapless", `alter table keyline.events disable trigger all; delete from keyline.events where record_id = 1 and seq = 1`},
		{"the last event is missing", "seqs_gapless", `alter table keyline.events disable trigger all; delete from keyline.events where record_id = 1 and seq = 2`},
		{"an event is above head", "seqs_gapless", `alter table keyline.events disable trigger all; update keyline.events set seq = 5 where record_id = 1 and seq = 2`},
		{"cursor above head", "cursor_at_most_head", `alter table keyline.records drop constraint records_cursor; update keyline.records set cursor = head + 1 where id = 1`},
		{"mailbox cursor above head", "cursor_at_most_head", `update keyline.mailboxes set cursor = 9 where record_id = 1`},
		{"cursor behind without a mailbox", "no_work_without_mailbox", `update keyline.records set cursor = 0 where id = 1; delete from keyline.mailboxes where record_id = 1`},
		{"backoff without a mailbox", "no_work_without_mailbox", `update keyline.records set cursor = head where id = 1; delete from keyline.mailboxes where record_id = 1`},
		{"command without a mailbox", "no_work_without_mailbox", `select keyline.command(2, 'retry', null, 0, null, 'me', '', ''); delete from keyline.mailboxes where record_id = 2; update keyline.records set cursor = head; delete from keyline.checkpoints where record_id = 2`},
		{"retry without a mailbox", "no_work_without_mailbox", `update keyline.dead_letters set status = 'retrying', due_at = now(), resolved_at = null where id = 2; delete from keyline.mailboxes where record_id = 2; update keyline.records set cursor = head; delete from keyline.checkpoints where record_id = 2`},
		{"claim of a worker that left", "no_claim_of_a_lost_worker", `update keyline.mailboxes set claimed_by = 1, claimed_at = now(), wants = null, wants_due_at = null where record_id = 1; update keyline.workers set ended_at = now() - 2 * lease where id = 1`},
		{"claim of no worker", "no_claim_of_a_lost_worker", `update keyline.mailboxes set claimed_by = 77, claimed_at = now(), wants = null, wants_due_at = null where record_id = 1`},
		{"checkpoint above head", "no_checkpoint_above_head", `update keyline.checkpoints set seq = 9 where record_id = 1 and state = 'backoff'`},
		{"backoff without a time", "no_impossible_states", `alter table keyline.checkpoints drop constraint checkpoints_due; update keyline.checkpoints set next_attempt_at = null where state = 'backoff'`},
		{"a state that there is not", "no_impossible_states", `alter table keyline.checkpoints drop constraint checkpoints_state; update keyline.checkpoints set state = 'lost' where state = 'parked'`},
		{"parked without a dead letter", "no_impossible_states", `delete from keyline.dead_letters where status = 'open'`},
		{"claimed without a time", "no_impossible_states", `alter table keyline.mailboxes drop constraint mailboxes_claim; update keyline.mailboxes set claimed_at = now() where record_id = 1`},
		{"a record without a key", "no_impossible_states", `update keyline.records set record_key = '' where id = 1`},
		{"an event without a type", "no_impossible_states", `alter table keyline.events disable trigger all; update keyline.events set type = '' where record_id = 1 and seq = 1`},
		{"an event of version 0", "no_impossible_states", `alter table keyline.events disable trigger all; update keyline.events set version = 0 where record_id = 1 and seq = 1`},
		{"a mailbox of fewer than no crashes", "no_impossible_states", `update keyline.mailboxes set crashes = -1 where record_id = 1`},
		{"a token that was never drawn", "no_impossible_states", `update keyline.mailboxes set token = 1000000 where record_id = 1`},
		{"resolved without a time", "no_impossible_states", `alter table keyline.dead_letters drop constraint dead_letters_end; update keyline.dead_letters set resolved_at = null where status = 'resolved'`},
		{"events of no record", "no_orphans", `insert into keyline.events select 99, seq, gen_random_uuid(), type, version, payload, headers, null, occurred_at, created_at from keyline.events limit 1`},
		{"a mailbox of no record", "no_orphans", `insert into keyline.mailboxes (record_id, due_at) values (99, now())`},
		{"a checkpoint of no consumer", "no_orphans", `update keyline.checkpoints set consumer_id = 77 where record_id = 1 and state = 'backoff'`},
		{"a dead letter of no event", "no_orphans", `update keyline.dead_letters set seq = 7 where status = 'open'`},
		{"a dead letter of no consumer", "no_orphans", `update keyline.dead_letters set consumer_id = 77 where status = 'resolved'`},
		{"a command of no record", "no_orphans", `insert into keyline.commands (record_id, kind, actor) values (99, 'retry', 'me')`},
		{"a skip of no event", "no_orphans", `update keyline.skips set seq = 9`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := verified(t)
			o := newOperator(t, db, keyline.RoleViewer)
			if _, err := db.Connect().PgConn().Exec(t.Context(), c.corrupt).ReadAll(); err != nil {
				t.Fatal(err)
			}
			v := must(o.Verify(t.Context(), keyline.VerifyOptions{}))(t)
			i := slices.IndexFunc(v.Checks, func(r keyline.CheckResult) bool { return r.Name == c.check })
			if v.OK || i < 0 || v.Checks[i].Violations == 0 || len(v.Checks[i].Sample) == 0 {
				t.Errorf("%s does not see it: %+v", c.check, v)
			}
		})
	}
}
