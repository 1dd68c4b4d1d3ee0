package store

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/keylinetype"
)

// health reads how a consumer fares.
func (r *rig) health(consumer string) ConsumerHealth {
	r.Helper()
	list, err := r.operate().Health(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for _, h := range list {
		if h.Name == consumer {
			return h
		}
	}
	r.Fatalf("no consumer %s in %+v", consumer, list)
	return ConsumerHealth{}
}

// leads asks as another worker.
func (r *rig) leads(worker int64) int64 {
	r.Helper()
	r.SetWorker(worker)
	term, err := r.KeepHealth(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return term
}

func (r *rig) wantTerm(worker, want int64) {
	r.Helper()
	if term := r.leads(worker); term != want {
		r.Errorf("worker %d has the term %d, want %d", worker, term, want)
	}
}

func TestHealthIsKeptByOneLeaderAtATimeWithATermOfTheDatabase(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	a, b := r.me, r.join("b")
	r.wantTerm(a, 1)
	r.wantTerm(b, 0)
	r.wantTerm(a, 1)
	// Whoever is late does not wait, and counts nothing.
	tx := r.begin()
	r.in(tx, "select from keyline.leases for update")
	r.wantTerm(a, 0)
	r.rollbackTx(tx)
	for why, stage := range map[string]string{
		"its time is over":          "update keyline.leases set expires_at = clock_timestamp()",
		"the clock was set back":    "update keyline.leases set expires_at = clock_timestamp() + interval '1 hour'",
		"nobody knows it any more":  "update keyline.leases set holder = 99",
		"nobody has ever been here": "update keyline.leases set holder = null, expires_at = '-infinity'",
	} {
		before := r.leads(a) + r.leads(b)
		r.exec(stage)
		if now := r.leads(b); now == 0 || now < before {
			t.Errorf("%s: b has the term %d after %d", why, now, before)
		}
		r.wantTerm(a, 0)
		r.exec("update keyline.leases set holder = $1", a)
	}
	r.exec("update keyline.leases set holder = $1, term = 7, expires_at = clock_timestamp() + interval '10 s'", b)
	r.wantTerm(a, 0)
	if marked, err := r.MarkLost(t.Context(), r.beat(b)); !marked || err != nil {
		t.Fatal(marked, err)
	}
	r.wantTerm(b, 0) // it may lead no more, and the next has a term of its own
	r.wantTerm(a, 8)
	if h := r.health("c"); h.Term != 8 || h.CountedAt == nil || !h.PendingExact {
		t.Errorf("%+v", h)
	}
}

// A lease that was renewed after this one had read the clock ends later than a ttl after that.
func TestWhoeverLooksWhileTheLeaseIsRenewedDoesNotTakeItForOneOfBeforeTheClockWasSetBack(t *testing.T) {
	r := newRig(t)
	a, b := r.me, r.join("b")
	r.wantTerm(a, 1)
	r.SetWorker(b)
	var term int64
	r.overtaken("keep_health", "leases", func() (err error) {
		term, err = r.KeepHealth(t.Context())
		return err
	}, "update keyline.leases set expires_at = clock_timestamp() + make_interval(secs => $1)", healthLease.Seconds())
	if term != 0 {
		t.Errorf("another leads with the term %d while this one's has just been renewed", term)
	}
	r.wantTerm(a, 1)
}

func TestHealthCountsWhatWaitsOfEachConsumer(t *testing.T) {
	r := newRig(t)
	busy, rests := r.register(definition("busy"), definition("rests")), int32(2)
	r.sweepAll()
	if h := r.health("busy"); h.CountedAt != nil || h.PendingExact {
		t.Errorf("before anybody has counted: %+v", h)
	}
	r.wantTerm(r.me, 1)
	if h := r.health("busy"); h.Pending != 0 || !h.PendingExact || h.OldestAt != nil || h.Workers != 0 {
		t.Errorf("with nothing to do: %+v", h)
	}
	waits, done, parked := r.append("waits", "t", "t", "t"), r.append("done", "t", "t"), r.append("parked", "t", "t")
	r.exec("update keyline.records set cursor = head where id <> $1", waits)
	r.exec("delete from keyline.mailboxes where record_id <> $1", waits)
	// busy: one of three done and in backoff, and parked elsewhere without a mailbox. rests: paused on two records.
	r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, next_attempt_at, error_code) values
		($1, $4, 1, 'backoff', 1, now(), 'x'), ($3, $4, 0, 'parked', 1, null, 'unsupported_version'), ($1, $5, 3, 'ready', 0, null, null), ($2, $5, 1, 'ready', 0, null, null)`,
		waits, done, parked, busy, rests)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at, status, due_at, resolved_at) values
		($1, 1, $2, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'open', null, null), ($1, 2, $2, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'retrying', now(), null),
		($1, 3, $2, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'resolved', null, now())`, done, busy)
	r.exec(`insert into keyline.consumer_health (consumer_id, worker_id, lane, completed, failed, last_success_at) values ($1, 1, 0, 5, 1, now()), ($1, 2, 1, 2, 0, null)`, busy)
	r.exec(`update keyline.workers set consumers = '{busy}', state = '{"consumers": [{"name": "busy", "in_flight": 3}, {"name": "other", "in_flight": 9}]}'`)
	r.setStatus("rests", "paused")
	r.wantTerm(r.me, 1)

	h := r.health("busy")
	if h.Pending != 2+2 || !h.PendingExact || h.Retrying != 2 || h.Parked != 1 || h.Unsupported != 1 || h.Dead != 1 ||
		h.Processing != 3 || h.Workers != 1 || h.LastSeenAt == nil || h.Completed != 7 || h.Failed != 1 || h.LastSuccessAt == nil || h.LastFailureAt != nil {
		t.Errorf("%+v", h)
	}
	if oldest := get[time.Time](r, "select created_at from keyline.events where record_id = (select id from keyline.records where record_key = 'waits') and seq = 2"); h.OldestAt == nil || !h.OldestAt.Equal(oldest) {
		t.Errorf("the oldest is of %v, want %v", h.OldestAt, oldest)
	}
	if h := r.health("rests"); h.Status != "paused" || h.Pending != 1 || !h.PendingExact || h.Workers != 0 {
		t.Errorf("%+v", h)
	}
	// A count that was cut off says so.
	r.append("more")
	r.exec("select keyline.keep_health($1, '15 s', 1)", r.me)
	if h := r.health("busy"); h.PendingExact || h.Pending == 0 {
		t.Errorf("%+v", h)
	}
	r.setStatus("rests", "disabled")
	r.wantTerm(r.me, 1)
	if n := get[int](r, "select count(*) from keyline.consumer_backlog"); n != 1 {
		t.Errorf("%d counts are left", n)
	}
}

// scans counts the sequential scans of the large tables by this transaction's session.
func scans(r *rig, tx pgx.Tx) (n int64) {
	r.Helper()
	err := tx.QueryRow(r.Context(), `select coalesce(sum(seq_scan), 0)::bigint from pg_stat_xact_all_tables
		where schemaname = 'keyline' and relname in ('events', 'records', 'mailboxes', 'checkpoints', 'dead_letters', 'failures', 'skips')`).Scan(&n)
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// How many records and events there are must not matter: those that are read are a few thousand.
func TestHealthIsCheapHoweverManyRecordsThereAre(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"), definition("d"), definition("p"))
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	// c has a row on every record, p is paused on every one, and all that is given up is much.
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) select id, x, 0, 'ready' from keyline.records cross join unnest(array[$1::integer, $1 + 2]) x", c)
	r.exec("update keyline.checkpoints set state = 'parked' where record_id % 3 = 0 and consumer_id = $1", c)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select id, 1, $1, gen_random_uuid(), 4, 'exhausted', 'x', now(), now() from keyline.records where id % 3 = 0`, c)
	r.exec("update keyline.consumers set status = 'paused' where name = 'p'")
	for _, backlog := range []string{"every record waits", "none waits"} {
		if backlog == "none waits" {
			r.exec("update keyline.records set cursor = head")
			r.exec("delete from keyline.mailboxes")
		}
		for _, statistics := range []string{"of before", "of now"} {
			t.Run(backlog+", statistics "+statistics, func(t *testing.T) {
				r := r.sub(t)
				if statistics == "of now" {
					r.exec("vacuum analyze")
				}
				tx := r.begin()
				defer r.rollbackTx(tx)
				before := scans(r, tx)
				r.frugal(tx, "keep_health", 8*healthMost, r.me, healthLease.Seconds(), healthMost)
				r.frugal(tx, "operate_health", 20)
				if n := scans(r, tx) - before; n != 0 {
					t.Errorf("%d large tables were read through", n)
				}
				var exact int
				if err := tx.QueryRow(t.Context(), "select count(*) from keyline.consumer_backlog where pending_exact").Scan(&exact); err != nil {
					t.Fatal(err)
				}
				if want := map[string]int{"every record waits": 0, "none waits": 1}[backlog]; exact != want {
					t.Errorf("%d counts are exact, want %d", exact, want)
				}
			})
		}
	}
}

// What waits of a record is looked up once, and not once for each consumer. (Seen: with 300 consumers, most of which nothing
// concerned, a count took the better part of a minute, and came every ten seconds.)
func TestHealthReadsEachRecordOnceHoweverManyConsumersThereAre(t *testing.T) {
	r := newRig(t)
	const consumers, records = 50, 2_000
	var defs []Definition
	for i := range consumers {
		defs = append(defs, definition("c"+strconv.Itoa(i)))
	}
	r.register(defs...)
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", records, 1); err != nil {
		t.Fatal(err)
	}
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.frugal(tx, "keep_health", 4*records, r.me, healthLease.Seconds(), healthMost)
	var n int
	if err := tx.QueryRow(t.Context(), r.named("select count(*) from keyline.consumer_backlog where pending = $1 and pending_exact"), records).Scan(&n); err != nil || n != consumers {
		t.Errorf("%d counts are right: %v", n, err)
	}
}

// All together, consumers that are parked everywhere cost what ten of them do. (Seen: with 300 a count took seven seconds of every ten.)
func TestHealthReadsNoMoreRowsTheMoreConsumersAreParked(t *testing.T) {
	r := newRig(t)
	const consumers, records, most, each = 50, 200, 100, 50
	var defs []Definition
	for i := range consumers {
		defs = append(defs, definition("c"+strconv.Itoa(i)))
	}
	r.register(defs...)
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", records, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) select r.id, c.id, 0, 'parked' from keyline.records r, keyline.consumers c")
	r.exec("delete from keyline.mailboxes")
	tx := r.begin()
	defer r.rollbackTx(tx)
	r.frugal(tx, "keep_health", each*consumers+3*consumers, r.me, healthLease.Seconds(), most)
	var n int
	if err := tx.QueryRow(t.Context(), r.named("select count(*) from keyline.consumer_backlog where parked = $1 and not pending_exact"), each).Scan(&n); err != nil || n != consumers {
		t.Errorf("%d counts are right: %v", n, err)
	}
}

// However consumers stand on records, what is counted is what each of them by itself has before it.
func TestHealthCountsAsEachConsumerByItself(t *testing.T) {
	rnd := seeded(t)
	r := newRig(t)
	names := []string{"a", "b", "c", "d", "rests", "begins"}
	for _, name := range names {
		d := definition(name)
		if name == "begins" {
			d.Start = keylinetype.Beginning()
		}
		r.register(d)
	}
	r.sweepAll()
	r.exec("update keyline.consumers set status = case name when 'rests' then 'paused' when 'begins' then 'backfilling' else status end")
	for i := range 60 {
		record := r.append(keyOf(i), slices.Repeat([]string{"t"}, 1+rnd.IntN(4))...)
		r.exec("update keyline.records set cursor = floor($2::double precision * (head + 1)) where id = $1", record, rnd.Float64())
		if rnd.IntN(3) == 0 {
			r.exec("update keyline.mailboxes m set cursor = r.head from keyline.records r where r.id = m.record_id and r.id = $1", record)
		}
		if rnd.IntN(3) == 0 {
			r.exec("delete from keyline.mailboxes where record_id = $1", record)
		}
		for c := range names {
			// The first has nearly everywhere a row, the second nowhere.
			if c == 1 || c != 0 && rnd.IntN(2) == 0 || rnd.IntN(20) == 0 {
				continue
			}
			state := []string{"ready", "ready", "backoff", "parked"}[rnd.IntN(4)]
			r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, next_attempt_at)
				select id, $2::integer, floor($4::double precision * (head + 1)), $3::text, 1, case when $3::text = 'backoff' then now() end from keyline.records where id = $1`,
				record, c+1, state, rnd.Float64())
		}
	}
	r.wantTerm(r.me, 1)
	for _, name := range names {
		h := r.health(name)
		want := get[string](r, `select format('%s events, %s in backoff, the oldest of %s', coalesce(sum(x.n), 0), count(*) filter (where x.state = 'backoff'), min(x.created_at))
			from keyline.consumers c left join lateral (
				select p.head - e.seq + 1 as n, p.state, e.created_at
				from keyline.positions p
				left join keyline.checkpoints k on k.record_id = p.record_id and k.consumer_id = p.consumer_id
				cross join lateral (select e.seq, e.created_at from keyline.events e where e.record_id = p.record_id and e.seq > p.seq order by e.seq limit 1) e
				where p.consumer_id = c.id and (exists (select from keyline.mailboxes m where m.record_id = p.record_id) or k.seq is not null and (c.status <> 'active' or k.state = 'parked'))
			) x on true where c.name = $1`, name)
		got := get[string](r, "select format('%s events, %s in backoff, the oldest of %s', $1::bigint, $2::bigint, $3::timestamptz)", h.Pending, h.Retrying, h.OldestAt)
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
