package traffic_test

import (
	"context"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/faults"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/examples/crm/traffic"
	"github.com/keylinehq/keyline/internal/clock"
)

func run(t *testing.T, a *crmtest.App, cfg traffic.Config) traffic.Report {
	t.Helper()
	cfg.Seed = clock.RandomSeed()
	t.Logf("seed %d", cfg.Seed)
	report, err := traffic.Run(t.Context(), a.Service, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Verify(t.Context(), a.Pool); err != nil {
		t.Fatal(err)
	}
	return report
}

func check(t *testing.T, a *crmtest.App) recorder.Report {
	t.Helper()
	r, err := recorder.Check(t.Context(), a.Pool)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func recorded(t *testing.T) *crmtest.App {
	t.Helper()
	a := crmtest.New(t)
	if err := recorder.Install(t.Context(), a.Pool); err != nil {
		t.Fatal(err)
	}
	return a
}

// Promise (P17, P18): many people at once, two workers, failures that pass and
// events that nobody can digest: everything that was appended is delivered to everyone whom
// it concerns, in order, once; what traffic, streams and handlers count agrees.
func TestTrafficIsDeliveredInOrderToEveryConsumer(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	rules := []faults.Rule{
		faults.Transient(faults.Subject(traffic.Flaky), 2, "notification", "timeline"),
		faults.Transient(faults.All(faults.Subject(traffic.Flaky), faults.Type("activity.created")), 1, "dashboard", "calendar"),
		faults.Poison(faults.All(faults.Subject(traffic.Poison), faults.Type("activity.created")), "calendar"),
	}
	a.Start(keyline.Config{Name: "one"}, recorder.Record(faults.Inject(a.Consumers(), rules...), a.Pool, "one")...)
	a.Start(keyline.Config{Name: "two", Beside: "one"}, recorder.Record(faults.Inject(a.Consumers(), rules...), a.Pool, "two")...)
	report := run(t, a, traffic.Config{Clients: 6, Activities: 15, Operations: 400, Flaky: 5, Poison: 2})
	a.Settled()
	r := check(t, a)
	if !r.OK() || r.Redelivered != 0 || r.Dead != 2 || r.Consumers["calendar"].Dead != 2 {
		t.Errorf("deliveries: %+v", r)
	}
	if r.Appended != report.Appended || r.Delivered+r.Dead != r.Expected {
		t.Errorf("traffic %+v, deliveries %+v", report, r)
	}
	// What the consumers have made of it agrees with the events.
	for what, sql := range map[string]string{
		"timeline":  `select count(*) = (select count(*) from keyline.events where type <> 'activity.note_internal') from crm.timeline`,
		"dashboard": `select sum(events) = (select count(*) from keyline.events) from crm.dashboard`,
		"provider":  `select coalesce(sum(requests), 0) = count(*) from fake_provider.messages`,
		"calendar": `select count(*) = 0 from crm.activities a join crm.calendar c on c.activity_id = a.id
			where (c.owner, c.subject, c.starts_at, c.closed) is distinct from (a.owner, a.subject, a.scheduled_at, a.status in ('completed', 'cancelled'))
			  and c.applied_seq = (select max(e.seq) from keyline.events e join keyline.records r on r.id = e.record_id
			    where r.record_key = 'activity:' || a.id and e.type not in ('activity.started', 'activity.note_internal'))`,
	} {
		if !crmtest.Get[bool](a, sql) {
			t.Errorf("%s does not agree with the events", what)
		}
	}
	if report.Appended < 400 || len(report.ByRecord) < 15 {
		t.Errorf("traffic: %d events on %d records", report.Appended, len(report.ByRecord))
	}
}

// Promise: a delivery that is dropped or put after a younger one is found: the
// checks can fail.
func TestSabotageIsFound(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"drop", "reorder"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			a := recorded(t)
			consumers, err := faults.Sabotage(recorder.Record(a.Consumers(), a.Pool, "w"), how)
			if err != nil {
				t.Fatal(err)
			}
			a.Start(keyline.Config{}, consumers...)
			run(t, a, traffic.Config{Clients: 2, Activities: 5, Operations: 60})
			a.Settled()
			r := check(t, a)
			if r.OK() {
				t.Errorf("nothing was found: %+v", r)
			}
			if how == "drop" && r.Lost == 0 || how == "reorder" && r.OrderViolations == 0 {
				t.Errorf("something else was found: %+v", r)
			}
		})
	}
	if _, err := faults.Sabotage(nil, "sing"); err == nil {
		t.Error("an unknown sabotage is taken")
	}
}

// Promise: the counts are exact when traffic ends because its context does, and
// Verify finds a difference.
func TestTrafficCountsExactlyWhatItAppended(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for {
			var n int64
			if err := a.Pool.QueryRow(ctx, "select count(*) from keyline.events").Scan(&n); err != nil || n >= 50 {
				return
			}
		}
	}()
	seed := clock.RandomSeed()
	t.Logf("seed %d", seed)
	report, err := traffic.Run(ctx, a.Service, traffic.Config{Clients: 8, Activities: 10, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	if n := crmtest.Get[int64](a, "select count(*) from keyline.events"); n != report.Appended {
		t.Errorf("counted %d of %d events", report.Appended, n)
	}
	if err := report.Verify(t.Context(), a.Pool); err != nil {
		t.Error(err)
	}
	for key := range report.ByRecord {
		report.ByRecord[key]++
		if report.Verify(t.Context(), a.Pool) == nil {
			t.Error("an event that is missing is not found")
		}
		report.ByRecord[key] -= 2
		if report.Verify(t.Context(), a.Pool) == nil {
			t.Error("an event too many is not found")
		}
		break
	}
}
