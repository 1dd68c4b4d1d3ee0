package store

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

// The tables are filled so that a wrong plan reads thousands of times what a
// right one does; how many rows a statement has read does not depend on the machine.
const (
	planRecords  = 100_000
	planResident = 2_000 // claimed by the worker
	planBatch    = 500
)

// reads counts the rows of each table that the transaction's session has fetched so far.
func reads(r *rig, tx pgx.Tx) map[string]int64 {
	r.Helper()
	rows, err := tx.Query(r.Context(), r.named(`select relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
		from pg_stat_xact_all_tables where schemaname = 'keyline'`))
	if err != nil {
		r.Fatal(err)
	}
	counts := map[string]int64{}
	var (
		table string
		n     int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&table, &n}, func() error { counts[table] = n; return nil }); err != nil {
		r.Fatal(err)
	}
	return counts
}

// frugal runs a statement of the store and fails if it reads more rows of any
// table than most; a constant few are free.
func (r *rig) frugal(tx pgx.Tx, statement string, most int64, args ...any) {
	r.Helper()
	before := reads(r, tx)
	if _, err := tx.Exec(r.Context(), r.q(statement), args...); err != nil {
		r.Fatalf("%s: %v", statement, err)
	}
	const free = 20
	for table, n := range reads(r, tx) {
		if n -= before[table]; n > 0 {
			r.Logf("%s reads %d rows of %s", statement, n, table)
			if n > most+free {
				r.Errorf("%s reads %d rows of %s, and should at most %d: see its plan", statement, n, table, most)
			}
		}
	}
}

func TestClaimLoadAndFlushReadOnlyWhatTheyAreAbout(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"), definition("d"))
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	// Half of them not due yet, half of them with a row; and much history.
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '1 hour' where record_id % 2 = 0")
	r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, next_attempt_at)
		select record_id, $1, 0, 'backoff', 1, clock_timestamp() + interval '1 hour' from keyline.mailboxes where record_id % 4 < 2`, c)
	r.exec(`insert into keyline.commands (record_id, kind, actor, applied_at, done) select id, 'retry', 'op', now(), true from keyline.records where id % 3 = 0`)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select id, 1, $1, gen_random_uuid(), 4, 'exhausted', 'x', now(), now() from keyline.records where id % 3 = 0`, c)
	for r.count("mailboxes", "claimed_by is not null") < planResident {
		r.claims(r.me, planBatch)
	}

	// The template's statistics say that the tables are empty; then they are right.
	for _, statistics := range []string{"of empty tables", "of full tables"} {
		t.Run(statistics, func(t *testing.T) {
			r := r.sub(t)
			if statistics == "of full tables" {
				r.exec("analyze")
			}
			r.frugalClaims()
			r.frugalLoads()
			r.frugalFlushes(c)
		})
	}
}

func (r *rig) frugalClaims() {
	r.Helper()
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.frugal(tx, "claim", 2*planBatch, r.me, planBatch, []int32{7}, "-infinity", nil)
	r.frugal(tx, "claim", 5, r.me, 1, nil, "-infinity", int64(2))
	r.frugal(tx, "next_due", 5, []int32{7})
	r.frugal(tx, "recover", 0, recoverChunk)                                                                     // finds nothing
	r.frugal(tx, "hand_back_orphans", 2*planResident, r.me, []int64{}, []int64{}, r.clock.Now().Add(-time.Hour)) // likewise
	r.in(tx, "update keyline.workers set status = 'lost', ended_at = clock_timestamp() where id = $1", r.me)
	r.frugal(tx, "recover", 6*planResident, recoverChunk)
}

// mine returns claims of the worker, of records of which every second has a row.
func (r *rig) mine(n int) (ids, tokens []int64) {
	r.Helper()
	err := r.pool.QueryRow(r.Context(), `select array_agg(record_id), array_agg(token) from
		(select record_id, token from keyline.mailboxes where claimed_by = $1 order by record_id limit $2) m`, r.me, n).Scan(&ids, &tokens)
	if err != nil || len(ids) != n {
		r.Fatal(len(ids), err)
	}
	return ids, tokens
}

func (r *rig) frugalLoads() {
	r.Helper()
	ids, tokens := r.mine(planBatch)
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.in(tx, r.q("load_pin"))
	r.frugal(tx, "load_records", planBatch, ids, tokens, 100, 0)
	r.frugal(tx, "load_records", 5, ids[:1], []int64{claimedNow}, 100, r.me)
	for _, statement := range []string{"load_checkpoints", "load_commands", "load_retries"} {
		r.frugal(tx, statement, planBatch, ids)
	}
	r.frugal(tx, "load_behind", planBatch, ids, 100)
	froms, limits := make([]int64, len(ids)), make([]int32, len(ids))
	for i := range limits {
		limits[i] = 100
	}
	r.frugal(tx, "load_range", planBatch, ids, froms, limits)
	r.frugal(tx, "news", planBatch, ids)
}

// frugalFlushes flushes whole batches in each way in which claims go on or end.
func (r *rig) frugalFlushes(consumer int32) {
	r.Helper()
	ids, tokens := r.mine(planBatch)
	epoch := r.epoch()
	for _, then := range []core.Disposition{core.Keep, core.Settle, core.HandBack, core.Release} {
		a := newArguments(planBatch)
		for i, id := range ids {
			f := core.Flush{Record: id, Token: tokens[i], Head: 1, Cursor: 1, Then: then, Deletes: []int32{consumer}}
			if then != core.Settle {
				f.Deletes = nil
				f.Upserts = []core.Checkpoint{backoff(consumer, 0, 1, r.clock.Now().Add(time.Hour))}
			}
			f.Counts = []core.Counts{{Consumer: consumer, Completed: 1}}
			a.add(&f)
		}
		args, err := a.list(r.me, epoch, 0, int64(then)+1)
		if err != nil {
			r.Fatal(err)
		}
		tx := r.begin()
		r.frugal(tx, "flush", 3*planBatch, args...)
		r.rollbackTx(tx)
	}
}

// A session may have planned while mailboxes was empty, as it is whenever there is nothing to do.
func TestBeatsReadFewMailboxesHoweverManyThereAreByNow(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	const gone = 500
	r.exec("vacuum analyze keyline.mailboxes")
	r.exec(`insert into keyline.workers (name, instance, host, pid, lease, consumers, status, ended_at)
		select 'gone', gen_random_uuid(), 'h', 1, '15 s', '{}', 'left', clock_timestamp() from generate_series(1, $1)`, gone)
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.frugal(tx, "beats", gone)
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	for r.count("mailboxes", "claimed_by is not null") < planResident {
		r.claims(r.me, planBatch)
	}
	r.frugal(tx, "beats", gone)
}

// A session may have planned while nothing had work, and an operator's bulk act gives thousands of commands in one.
func TestACommandLooksUpItsRecordAlone(t *testing.T) {
	r := newRig(t)
	r.exec("vacuum analyze keyline.records, keyline.mailboxes, keyline.commands")
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.in(tx, "insert into keyline.records (tenant, record_key, head) values ('', 'first', 0)")
	var first int64
	if err := tx.QueryRow(t.Context(), r.named("select id from keyline.records")).Scan(&first); err != nil {
		t.Fatal(err)
	}
	command := func() { r.frugal(tx, "command", 1, first, "retry", 1, 1, 0, "olga", "", "first") }
	lock := func() { r.frugal(tx, "operate_lock_record", 1, first) }
	for range 10 { // so that the plans are generic ones
		command()
		lock()
	}
	r.in(tx, "insert into keyline.records (tenant, record_key, head) select '', 'r' || n, 0 from generate_series(1, $1) n", planRecords)
	r.in(tx, "insert into keyline.mailboxes (record_id, due_at) select id, clock_timestamp() from keyline.records on conflict do nothing")
	command()
	lock()
}
