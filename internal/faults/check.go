package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/recorder"
)

// allow is what a scenario may leave behind.
type allow struct {
	duplicates int64 // deliveries that succeeded more than once
	dead       int64
	overlaps   bool // a zombie's handler beside its successor's
	unsettled  bool // some records stay parked or paused
	pruned     bool // events are gone: the recorder cannot say whether those were owed
	// ignored is how many events consumers that were disabled let go by: neither more nor fewer, but for anyNumber. To the
	// recorder they are lost, and disorder what came after them.
	ignored map[string]int64
	within  time.Duration
}

// anyNumber of events may have gone by.
const anyNumber = -1

// overlaps counts pairs of runs of one consumer on one record that ran at once, and those of them that were in one
// process: there nothing starts beside a handler that still runs, whatever became of its claim. (The begin of one that
// was cancelled in it may come into the log after its end: of those in one process both have to have done their work.)
const overlaps = `with runs as (
	select run, consumer, record_key, worker, min(id) filter (where mark = 'begin') as a, max(id) filter (where mark = 'done') as b
	from crm.delivered_log group by 1, 2, 3, 4)
	select count(*), count(*) filter (where x.worker = y.worker and y.b is not null) from runs x join runs y using (consumer, record_key)
	where x.run <> y.run and x.a < y.a and x.b is not null and y.a < x.b`

// backwards counts what was begun after something younger of its record, by consumers that let events go by.
const backwards = `select count(*) from (
	select seq < max(seq) over (partition by consumer, tenant, record_key order by id rows between unbounded preceding and 1 preceding) as older
	from crm.delivered_log where mark = 'begin' and consumer = any($1)) x where older`

// gone counts the deliveries of which no event is left.
const gone = `select count(distinct (l.consumer, l.tenant, l.record_key, l.seq)) from crm.delivered_log l
	join keyline.consumers c on c.name = l.consumer and c.status <> 'retired'
	where not exists (select from keyline.events e join keyline.records r on r.id = e.record_id
		where r.tenant = l.tenant and r.record_key = l.record_key and e.seq = l.seq)`

// check asks both witnesses, after everything has settled.
func (t *stage) check(a allow) {
	if a.within == 0 {
		a.within = 60 * time.Second
	}
	if !a.unsettled {
		// Where it does not, what the witnesses say tells why.
		if !t.within(a.within, func() bool {
			return t.try("select (select count(*) from keyline.consumers where sweep is not null) + (select count(*) from keyline.mailboxes)") == 0
		}) {
			t.fail("in vain for %s: everything settles", a.within)
		}
	}
	t.verify(a.within)
	r, err := recorder.Check(t.ctx, t.pool)
	t.must(err, "check the recorder")
	var n, here int
	t.must(t.pool.QueryRow(t.ctx, overlaps).Scan(&n, &here), "count overlaps")
	t.letGoBy(&r, a.ignored)
	pruned := int64(t.number(gone))
	t.found["pruned"] = pruned
	r.Unexpected -= pruned
	t.found["events"], t.found["delivered"], t.found["duplicates"] = r.Appended, r.Delivered, r.Redelivered
	t.found["lost"], t.found["disorder"], t.found["unexpected"], t.found["dead"], t.found["overlaps"] = r.Lost, r.OrderViolations, r.Unexpected, r.Dead, n
	for _, wrong := range []struct {
		it   bool
		what string
	}{
		{r.Lost != 0 && !a.unsettled, fmt.Sprintf("%d deliveries are lost", r.Lost)},
		{r.OrderViolations != 0, fmt.Sprintf("%d deliveries are out of order", r.OrderViolations)},
		{pruned != 0 && !a.pruned, fmt.Sprintf("of %d deliveries the events are gone", pruned)},
		{r.Unexpected != 0, fmt.Sprintf("%d deliveries were not owed", r.Unexpected)},
		{r.Redelivered > a.duplicates, fmt.Sprintf("%d duplicates, %d may be", r.Redelivered, a.duplicates)},
		{r.Dead != a.dead, fmt.Sprintf("%d dead letters, want %d", r.Dead, a.dead)},
		{n != 0 && !a.overlaps, fmt.Sprintf("%d runs overlap", n)},
		{here != 0, fmt.Sprintf("%d runs overlap in one process", here)},
	} {
		if wrong.it {
			t.fail("%s", wrong.what)
		}
	}
	if d := t.number(`select coalesce(sum(n - 1), 0) from (select count(*) n from crm.delivered_log where mark = 'done' and consumer like 'tx%'
		group by consumer, record_key, seq) x where n > 1`); d != 0 {
		t.fail("%d transactional effects happened twice", d)
	}
}

// letGoBy takes out of what is lost, and out of order, what consumers have let go by as they were to.
func (t *stage) letGoBy(r *recorder.Report, ignored map[string]int64) {
	if len(ignored) == 0 {
		return
	}
	sum := int64(0)
	for name, n := range ignored {
		c := r.Consumers[name]
		if c.Lost != n && n != anyNumber {
			t.fail("%s let %d events go by, want %d", name, c.Lost, n)
		}
		sum += c.Lost
		r.Lost -= c.Lost
		r.OrderViolations -= c.OrderViolations
	}
	r.OrderViolations += int64(t.number(backwards, slices.Collect(maps.Keys(ignored))))
	t.found["ignored"] = sum
}

// verify asks what `keyline verify` asks, and whether a command was forgotten.
func (t *stage) verify(within time.Duration) {
	// Claims of a worker that ended are none of its business until a recovery is due; here they have to go.
	t.eventually("claims of ended workers are freed", within, func() bool {
		return t.number(`select count(*) from keyline.mailboxes m where m.claimed_by is not null
			and not exists (select from keyline.workers w where w.id = m.claimed_by and w.status = 'live')`) == 0
	})
	v, err := t.operator().Verify(t.ctx, keyline.VerifyOptions{})
	t.must(err, "verify")
	for _, c := range v.Checks {
		if c.Violations != 0 {
			t.fail("verify: %s: %d, such as %v", c.Name, c.Violations, c.Sample)
		}
	}
	t.found["verified"] = len(v.Checks)
	if n := t.number("select count(*) from keyline.commands where applied_at is null"); n != 0 {
		t.fail("%d commands are not applied", n)
	}
}
