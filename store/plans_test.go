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

// depth is how many pages of an index a look-up may take.
const depth = 4

// reads counts the rows of each table that the transaction's session has fetched so far, and of each index the pages,
// by depth: an index that does not begin with what is looked up is read through, and gives few rows all the same.
func reads(r *rig, tx pgx.Tx) map[string]int64 {
	r.Helper()
	rows, err := tx.Query(r.Context(), r.named(`select relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
		from pg_stat_xact_all_tables where schemaname = 'keyline'
		union all select indexrelname, pg_stat_get_xact_blocks_fetched(indexrelid) / $1 from pg_stat_all_indexes where schemaname = 'keyline'`), depth)
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
	r.frugalCall(tx, statement, most, func() error {
		_, err := tx.Exec(r.Context(), r.q(statement), args...)
		return err
	})
}

// frugalCall is frugal about a call of the store's.
func (r *rig) frugalCall(tx pgx.Tx, statement string, most int64, call func() error) {
	r.Helper()
	before := reads(r, tx)
	if err := call(); err != nil {
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
	r.fillForPlans(c)
	// The template's statistics say that the tables are empty; then they are right.
	for _, statistics := range []string{"of empty tables", "of full tables"} {
		t.Run(statistics, func(t *testing.T) {
			r := r.sub(t)
			if statistics == "of full tables" {
				r.exec("analyze")
			}
			r.frugalClaims()
			r.frugalLoads(r.mine(planBatch))
			r.frugalFlushes(c)
			r.frugalExtras(r.ofDead(), c)
			r.frugalSteps(c)
		})
	}
}

// A session that has planned while the tables had no pages keeps those plans until the first analyze: to a planner all
// indexes of an empty table are one, and any order of a join.
// (Seen: with transactional consumers, which have a row for each record, an installation of a minute's age took seconds for a load.)
func TestPlansOfEmptyTablesServeFullOnes(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"), definition("d"))
	r.sweepAll()
	for _, table := range []string{"records", "events", "mailboxes", "checkpoints", "dead_letters", "commands", "failures", "skips"} {
		r.exec("alter table keyline." + table + " set (autovacuum_enabled = off)")
	}
	// One record, as there is wherever anything is flushed: a flush of none that is there ends before most of its statements.
	first := r.claimOne(r.append("first"))
	r.exec("vacuum analyze")
	r.session = r.db.Connect()
	for range 7 { // the first five plans are for the values given
		r.frugalClaims()
		r.frugalLoads([]int64{first.Record}, []int64{first.Token})
		r.frugalFlushesOf([]int64{first.Record}, []int64{first.Token}, c)
		r.frugalExtras([]deadRecord{{first.Record, first.Token, 1}}, c)
		r.frugalSteps(c)
	}
	r.fillForPlans(c)
	r.frugalClaims()
	r.frugalLoads(r.mine(planBatch))
	r.frugalFlushes(c)
	r.frugalExtras(r.ofDead(), c)
	r.frugalSteps(c)
}

// A sweep of a consumer that has a row on each record, of which none has a mailbox, reads what its chunk is about, also where
// nothing has been analyzed. (Seen: each chunk was joined with all rows of the consumer.)
func TestASweepReadsOnlyItsChunk(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.sweepAll()
	for _, table := range []string{"records", "mailboxes", "checkpoints"} {
		r.exec("alter table keyline." + table + " set (autovacuum_enabled = off)")
	}
	if err := r.BareSeed(t.Context(), "r", planRecords/5, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("delete from keyline.mailboxes")
	for _, sweep := range []string{"wake", "backfill", "clear"} {
		tx := r.begin()
		if sweep != "backfill" {
			r.in(tx, "insert into keyline.checkpoints (record_id, consumer_id, seq, state) select id, $1, 0, 'ready' from keyline.records", c)
		}
		r.in(tx, "update keyline.consumers set sweep = $2, sweep_record = 0 where id = $1", c, sweep)
		for range 3 {
			r.frugal(tx, "sweep", 8*sweepChunk, sweepChunk, []int32{})
		}
		r.rollbackTx(tx)
	}
}

// fillForPlans makes much of everything, and claims some.
func (r *rig) fillForPlans(c int32) {
	r.Helper()
	if err := r.BareSeed(r.Context(), "r", planRecords, 1); err != nil {
		r.Fatal(err)
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
	// One of these has seen much trouble.
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at, status, resolved_at, resolved_by)
		select (select min(record_id) from keyline.mailboxes where claimed_by is not null), 1 + n, $1, gen_random_uuid(), 4, 'exhausted', 'x', now(), now(), 'resolved', now(), 'op'
		from generate_series(1, 5000) n`, c)
	r.exec(`insert into keyline.commands (record_id, kind, actor, applied_at, done)
		select (select min(record_id) from keyline.mailboxes where claimed_by is not null), 'retry', 'op', now(), true from generate_series(1, 5000)`)
}

func (r *rig) frugalClaims() {
	r.Helper()
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.frugal(tx, "claim", 2*planBatch, r.me, planBatch, []int32{7}, "-infinity", nil)
	r.frugal(tx, "claim", 5, r.me, 1, nil, "-infinity", int64(2))
	r.frugal(tx, "recover", 0, recoverChunk)                                                                     // finds nothing
	r.frugal(tx, "hand_back_orphans", 2*planResident, r.me, []int64{}, []int64{}, r.clock.Now().Add(-time.Hour)) // likewise
	r.frugal(tx, "hand_back_orphans", 6*planResident, r.me, []int64{}, []int64{}, r.clock.Now().Add(time.Hour))  // all
	r.in(tx, "update keyline.mailboxes set claimed_by = $1, claimed_at = clock_timestamp() where claimed_by is null and unclean", r.me)
	r.in(tx, "update keyline.workers set status = 'lost', ended_at = clock_timestamp() where id = $1", r.me)
	r.frugal(tx, "recover", 6*planResident, recoverChunk)
}

// frugalSteps are the statements about one record, and those that walk.
func (r *rig) frugalSteps(consumer int32) {
	r.Helper()
	tx := r.begin()
	defer r.rollbackTx(tx)
	var id, token, dead int64
	if err := tx.QueryRow(r.Context(), r.named(`select coalesce(max(record_id), 0), coalesce(max(token), 0) from (select record_id, token from keyline.mailboxes
		where claimed_by = $1 and record_id % 4 = 1 order by record_id limit 1) m`), r.me).Scan(&id, &token); err != nil {
		r.Fatal(err)
	}
	if err := tx.QueryRow(r.Context(), r.named("select coalesce(max(id), 0) from keyline.dead_letters where status = 'open'")).Scan(&dead); err != nil {
		r.Fatal(err)
	}
	// refusing makes a call that is refused where there is no such row, as before the tables are filled.
	refusing := func(name, state string, there bool, sql string, args ...any) {
		r.Helper()
		r.frugalCall(tx, name, 1, func() error {
			attempt, err := tx.Begin(r.Context())
			if err != nil {
				return err
			}
			if _, err := attempt.Exec(r.Context(), sql, args...); sqlState(err) == state && !there {
				return attempt.Rollback(r.Context())
			} else if err != nil {
				return err
			}
			return attempt.Commit(r.Context())
		})
	}
	refusing("hold", stateClaimLost, id != 0, r.named("select keyline.hold($1, $2, $3)"), id, r.me, token)
	r.in(tx, r.q("pin"))
	rows := r.count("checkpoints", "record_id = $1 and consumer_id = $2", id, consumer)
	refusing("book_checkpoint", stateNoRow, rows == 1, r.q("book_checkpoint"), id, consumer, 0, 0, "ready", 0, 0, 0, nil, nil, nil, int64(0), int64(-1))
	r.frugal(tx, "booked_checkpoint", 1, id, consumer)
	r.in(tx, "update keyline.dead_letters set status = 'retrying', due_at = clock_timestamp() where id = $1", dead)
	refusing("book_retry", stateNoRow, dead != 0, r.q("book_retry"), dead, 4)
	r.frugal(tx, "booked_retry", 1, dead)
	r.frugal(tx, "still_mine", 1, id, r.me, token)
	r.frugal(tx, "command_outcome", 1, int64(1))
	r.frugal(tx, "find_record", 1, "", "r1")
	for _, seen := range []bool{true, false} {
		r.frugal(tx, "due_after_step", 4*sweepChunk, int64(0), sweepChunk, seen)
	}
	for _, sweep := range []string{"wake", "backfill", "clear"} {
		r.in(tx, "update keyline.consumers set sweep = $2, sweep_record = 0 where id = $1", consumer, sweep)
		r.frugal(tx, "sweep", 8*sweepChunk, sweepChunk, []int32{})
	}
	r.frugal(tx, "keep_health", 8*healthMost, r.me, healthLease.Seconds(), healthMost)
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

func (r *rig) frugalLoads(ids, tokens []int64) {
	r.Helper()
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.in(tx, r.q("pin"))
	r.frugal(tx, "next_due", 5, []int32{7})
	r.frugal(tx, "load_records", planBatch, ids, tokens, 100)
	r.frugal(tx, "load_record", 5, r.me, ids[0], 100)
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
	r.frugalFlushesOf(ids, tokens, consumer)
}

func (r *rig) frugalFlushesOf(ids, tokens []int64, consumer int32) {
	r.Helper()
	epoch := r.epoch()
	// To settle first: what others insert gives an empty table its first page.
	for _, then := range []core.Disposition{core.Settle, core.Keep, core.HandBack, core.Release} {
		a := newArguments(len(ids))
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
		r.frugal(tx, "flush", 4*planBatch, args...)
		r.rollbackTx(tx)
	}
}

// deadRecord is a record of the worker's with a dead letter of its first event.
type deadRecord struct{ Record, Token, Dead int64 }

func (r *rig) ofDead() []deadRecord {
	r.Helper()
	rows, err := r.pool.Query(r.Context(), r.named(`select m.record_id, m.token, d.id from keyline.mailboxes m
		join keyline.dead_letters d on d.record_id = m.record_id and d.seq = 1 where m.claimed_by = $1 order by m.record_id limit $2`), r.me, planBatch)
	if err != nil {
		r.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadRecord])
	if err != nil || len(list) != planBatch {
		r.Fatal(len(list), err)
	}
	return list
}

// frugalExtras flushes what is rare: the end of a dead letter, by its id and by its delivery, and of the command that asked for it, a
// new dead letter, a failure and a skip.
func (r *rig) frugalExtras(records []deadRecord, consumer int32) {
	r.Helper()
	now, epoch := r.clock.Now(), r.epoch()
	for _, id := range []int64{0, 1} {
		tx := r.begin()
		a := newArguments(len(records))
		for i, of := range records {
			var command int64
			if err := tx.QueryRow(r.Context(), r.named("insert into keyline.commands (record_id, kind, actor) values ($1, 'retry', 'op') returning id"), of.Record).Scan(&command); err != nil {
				r.Fatal(err)
			}
			a.add(&core.Flush{
				Record: of.Record, Token: of.Token, Head: 1, Then: core.Keep,
				DeadLetters: []core.DeadLetter{{Record: of.Record, Seq: 2, Consumer: consumer, Attempt: 1, Reason: core.DeadPermanent, Code: "x", FirstFailedAt: now, FailedAt: now}},
				DeadUpdates: []core.DeadUpdate{{Status: core.DeadDelivered, At: now,
					DeadRetry: core.DeadRetry{ID: id * of.Dead, Record: of.Record, Consumer: consumer, Seq: 1, Attempt: 5}}},
				Failures: []core.Failure{{Record: of.Record, Seq: 1, Consumer: consumer, Attempt: i + 2, At: now, Code: "x"}},
				Skips:    []core.Skip{{Record: of.Record, Seq: 1, Consumer: consumer, Attempt: 1, Code: "x", At: now}},
				Applied:  []core.AppliedCommand{{ID: command, Done: true}},
			})
		}
		args, err := a.list(r.me, epoch, 0, 1)
		if err != nil {
			r.Fatal(err)
		}
		r.frugal(tx, "flush", 4*planBatch, args...)
		r.rollbackTx(tx)
	}
}

// A session may have planned while mailboxes was empty, as it is whenever there is nothing to do; and statistics may be
// from when there was work and nobody had claimed any, or from when all of it was claimed.
func TestBeatsReadFewMailboxesHoweverManyThereAreByNow(t *testing.T) {
	for _, statistics := range []string{"of an empty table", "of unclaimed work", "of claimed work"} {
		t.Run(statistics, func(t *testing.T) { beatsReadFew(t, statistics) })
	}
}

func beatsReadFew(t *testing.T, statistics string) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	const gone = 500
	// Not when it suits autovacuum.
	r.exec("alter table keyline.mailboxes set (autovacuum_enabled = off)")
	r.exec("alter table keyline.workers set (autovacuum_enabled = off)")
	r.exec("vacuum analyze keyline.mailboxes")
	r.exec(`insert into keyline.workers (name, instance, host, pid, lease, consumers, status, ended_at)
		select 'gone', gen_random_uuid(), 'h', 1, '15 s', '{}', 'left', clock_timestamp() from generate_series(1, $1)`, gone)
	tx := r.begin()
	defer r.rollbackTx(tx)
	beats := func(most int64) {
		t.Helper()
		r.frugalCall(tx, "beats", most, func() error {
			list, err := r.beats(t.Context(), tx)
			if len(list) != 1 {
				t.Errorf("%d workers: %+v", len(list), list)
			}
			return err
		})
	}
	beats(gone)
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	if statistics == "of unclaimed work" {
		r.exec("analyze keyline.mailboxes")
	}
	for r.count("mailboxes", "claimed_by is not null") < planResident {
		r.claims(r.me, planBatch)
	}
	if statistics == "of claimed work" {
		r.exec("delete from keyline.mailboxes where claimed_by is null")
		r.exec("vacuum analyze keyline.mailboxes")
	}
	beats(gone)
}

// Likewise what metrics ask whenever they are collected.
func TestTheBacklogReadsFewRowsHoweverManyThereAreByNow(t *testing.T) {
	r := newRig(t)
	r.exec("alter table keyline.mailboxes set (autovacuum_enabled = off)")
	r.exec("vacuum analyze keyline.mailboxes")
	tx := r.begin()
	defer r.rollbackTx(tx)
	call := func() {
		r.frugalCall(tx, "backlog", 1, func() error { _, err := r.backlog(t.Context(), tx); return err })
	}
	call()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	call()
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
	r.in(tx, r.q("pin"))
	seq := 0
	give := func() {
		seq++ // another one each time, or it would join the first
		r.frugal(tx, "operate_lock_record", 1, first)
		r.frugal(tx, "operate_give", 1, first, "retry", 1, seq, 0, "olga", "", "first")
	}
	for range 10 { // so that the plans are generic ones
		give()
	}
	r.in(tx, "insert into keyline.records (tenant, record_key, head) select '', 'r' || n, 0 from generate_series(1, $1) n", planRecords)
	r.in(tx, "insert into keyline.mailboxes (record_id, due_at) select id, clock_timestamp() from keyline.records on conflict do nothing")
	r.in(tx, "insert into keyline.commands (record_id, kind, actor) select id, 'retry', 'op' from keyline.records where record_key <> 'first'")
	give()
}

// A bulk act goes through all dead letters in pages of a hundred, and an operator leafs through them: each page reads itself, whatever the
// session has read before. (Seen: from the sixth on each page read all that there were, and those of the newest did so always.)
func TestPagesOfDeadLettersReadOnlyThemselves(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"), definition("d"))
	r.sweepAll()
	const dead, page = 20_000, 100
	if err := r.BareSeed(t.Context(), "r", dead, 1); err != nil {
		t.Fatal(err)
	}
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select record_id, seq, $1, id, 4, 'exhausted', 'x', now(), now() from keyline.events`, c)
	r.exec("analyze")
	for name, q := range map[string]DeadQuery{"open": {Statuses: []string{"open"}}, "of a consumer": {Statuses: []string{"open", "retrying"}, Consumer: "c"}, "any": {}} {
		for _, oldest := range []bool{true, false} {
			tx := r.begin()
			above, below := int64(0), int64(dead+1)
			for range 8 {
				r.frugalCall(tx, "a page of dead letters, "+name, 2*page, func() error {
					list, err := r.deadLetters(t.Context(), tx, q, above, below, oldest, page)
					if len(list) != page {
						t.Fatalf("%d dead letters: %v", len(list), err)
					}
					if last := list[page-1].ID; oldest {
						above = last
					} else {
						below = last
					}
					return err
				})
			}
			r.rollbackTx(tx)
		}
	}
}
