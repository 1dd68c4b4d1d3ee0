package crm_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/faults"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/store"
)

// recorded sets the application up with a recorder around its consumers.
func recorded(t *testing.T) *crmtest.App {
	t.Helper()
	a := crmtest.New(t)
	if err := recorder.Install(t.Context(), a.Pool); err != nil {
		t.Fatal(err)
	}
	return a
}

func record(a *crmtest.App, consumers []keyline.Consumer) []keyline.Consumer {
	return recorder.Record(consumers, a.Pool, "test")
}

// checked says what the recorder found, and fails where it found anything wrong.
func checked(t *testing.T, a *crmtest.App) recorder.Report {
	t.Helper()
	r, err := recorder.Check(t.Context(), a.Pool)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Errorf("deliveries: %+v", r)
	}
	return r
}

// states are the states of one event's deliveries, as "calendar completed, …".
func states(a *crmtest.App, id any, seq int64) string {
	return crmtest.Get[string](a, `select coalesce(string_agg(consumer || ' ' || state, ', ' order by consumer), '') from keyline.deliveries
		where record_key = 'activity:' || $1::uuid and seq = $2`, id, seq)
}

func status(a *crmtest.App, id any, seq int64) string {
	return crmtest.Get[string](a, `select state from keyline.event_status where record_key = 'activity:' || $1::uuid and seq = $2`, id, seq)
}

const allCompleted = "calendar completed, dashboard completed, notification completed, timeline completed"

// Promise (P17): an activity is created and completed; each event is written
// with it, delivered to all four consumers once and in order, and then over. Nothing
// of it runs again when a worker starts anew.
func TestEndToEndACompletedActivityReachesAllFourConsumers(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	stop := a.Start(keyline.Config{}, record(a, a.Consumers())...)
	activity := a.Create()
	a.Complete(activity.ID)
	a.Settled()
	for seq := range int64(2) {
		if got := states(a, activity.ID, seq+1); got != allCompleted {
			t.Errorf("event %d: %s", seq+1, got)
		}
		if got := status(a, activity.ID, seq+1); got != "completed" {
			t.Errorf("event %d is %s", seq+1, got)
		}
	}
	timeline, err := a.Service.Timeline(t.Context(), crmtest.Org, activity.ID)
	if err != nil || len(timeline) != 2 || timeline[1].Summary != "completed: sold" || timeline[1].Actor != "alice" {
		t.Errorf("timeline %+v, %v", timeline, err)
	}
	sent, requests, err := a.Provider.Counts(t.Context())
	if err != nil || sent != 2 || requests != 2 {
		t.Errorf("%d messages of %d requests, %v", sent, requests, err)
	}
	effects := func() string {
		return rows(a, "crm.timeline") + rows(a, "crm.calendar") + rows(a, "crm.dashboard") + rows(a, "crm.delivered_log")
	}
	before := effects()
	stop()
	a.Start(keyline.Config{}, record(a, a.Consumers())...)
	a.Settled()
	if effects() != before {
		t.Error("something ran again")
	}
	if r := checked(t, a); r.Delivered != 8 || r.Expected != 8 || r.Redelivered != 0 || r.Appended != 2 {
		t.Errorf("deliveries: %+v", r)
	}
}

// Promise (P5, P17's failure variation): where one consumer fails, the activity
// stays as it is, the others stay completed and are not run again, and the one
// is retried alone until it succeeds.
func TestEndToEndOneFailingConsumerIsRetriedAlone(t *testing.T) {
	t.Parallel()
	for _, failing := range []string{"timeline", "calendar", "dashboard", "notification"} {
		t.Run(failing, func(t *testing.T) {
			t.Parallel()
			a := recorded(t)
			mend := make(chan struct{})
			rule := faults.Rule{Match: faults.Type("activity.completed"), Consumers: []string{failing}, Fail: func(context.Context, *keyline.Delivery) error {
				select {
				case <-mend:
					return nil
				default:
					return faults.ErrTransient
				}
			}}
			consumers := a.Consumers()
			for i := range consumers {
				consumers[i].Retry.Delays = slices.Repeat([]time.Duration{20 * time.Millisecond}, 1000)
			}
			a.Start(keyline.Config{}, record(a, faults.Inject(consumers, rule))...)
			activity := a.Complete(a.Create().ID)
			runs := func(mark string) int64 {
				return crmtest.Get[int64](a, "select count(*) from crm.delivered_log where mark = $1 and consumer = $2 and seq = 2", mark, failing)
			}
			others := func() int64 {
				return crmtest.Get[int64](a, "select count(distinct consumer) from crm.delivered_log where mark = 'done' and consumer <> $1 and seq = 2", failing)
			}
			testdb.Eventually(t, func() bool { return runs("begin") >= 3 && others() == 3 }, "the failing one to be retried and the others to be done")
			if now, err := a.Service.Get(t.Context(), crmtest.Org, activity.ID); err != nil || now.Status != crm.Completed {
				t.Errorf("the activity is %+v, %v", now, err)
			}
			if n := runs("done"); n != 0 {
				t.Errorf("it is done %d times", n)
			}
			close(mend)
			a.Settled()
			if got := states(a, activity.ID, 2); got != allCompleted {
				t.Errorf("in the end: %s", got)
			}
			if n := crmtest.Get[int64](a, "select count(*) from crm.delivered_log where mark = 'begin' and consumer <> $1", failing); n != 6 {
				t.Errorf("%d runs of the others, want one for each of their 6 deliveries", n)
			}
			if r := checked(t, a); r.Delivered != 8 || r.Redelivered != 0 {
				t.Errorf("deliveries: %+v", r)
			}
		})
	}
}

// Promise (P6, P7): a delivery that fails each time becomes a dead letter, which
// holds no payload; the others and the activity's next events go on.
func TestEndToEndAFailureThatStaysBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rule     faults.Rule
		reason   string
		attempts int
	}{
		"exhausted": {faults.Transient(faults.Type("activity.created"), 1000, "notification"), "exhausted", 4},
		"permanent": {faults.Poison(faults.Subject("offer"), "notification"), "permanent", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := recorded(t)
			rule := tc.rule
			if name == "permanent" {
				rule.Match = faults.All(rule.Match, faults.Type("activity.created"))
			}
			a.Start(keyline.Config{}, record(a, faults.Inject(a.Consumers(), rule))...)
			activity := a.Complete(a.Create().ID)
			a.Settled()
			if got := states(a, activity.ID, 1); got != strings.Replace(allCompleted, "notification completed", "notification dead_letter", 1) {
				t.Errorf("event 1: %s", got)
			}
			if got := status(a, activity.ID, 1); got != "dead_letter" {
				t.Errorf("event 1 is %s", got)
			}
			if got := states(a, activity.ID, 2); got != allCompleted {
				t.Errorf("event 2: %s", got)
			}
			var reason string
			var attempts int
			if err := a.Pool.QueryRow(t.Context(), "select reason, attempt from keyline.dead_letters").Scan(&reason, &attempts); err != nil {
				t.Fatal(err)
			}
			if reason != tc.reason || attempts != tc.attempts {
				t.Errorf("dead letter: %s after %d attempts", reason, attempts)
			}
			if text := rows(a, "keyline.dead_letters") + rows(a, "keyline.failures"); strings.Contains(text, "offer") || strings.Contains(text, "globex") {
				t.Errorf("the payload is in %s", text)
			}
			if r := checked(t, a); r.Dead != 1 || r.Delivered != 7 {
				t.Errorf("deliveries: %+v", r)
			}
		})
	}
}

// Promise (P15): a disabled consumer's events pass; it gets none of them when it
// is enabled again, and all after that.
func TestEndToEndADisabledConsumerLetsEventsPass(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	a.Start(keyline.Config{}, record(a, a.Consumers())...)
	first := a.Create()
	a.Settled()
	registry, err := store.Open(t.Context(), store.Config{Pool: a.Pool.Config()})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	set := func(to core.Status) {
		testdb.Eventually(t, func() bool {
			err := registry.SetStatus(t.Context(), "notification", to, "test", "to see")
			return err == nil
		}, "notification to be %s", to)
		testdb.Eventually(t, func() bool {
			return crmtest.Get[int64](a, "select count(*) from keyline.consumers where name = 'notification' and status = $1 and sweep is null", string(to)) == 1
		}, "the sweep after %s", to)
	}
	given := func(id uuid.UUID) string {
		return crmtest.Get[string](a, `select coalesce(string_agg(seq::text, ' ' order by id), '') from crm.delivered_log
			where consumer = 'notification' and mark = 'begin' and record_key = 'activity:' || $1::uuid`, id)
	}
	// A worker hears of a change within its poll interval; until then it may
	// still go by what it knew.
	heard := func(seqs string) {
		testdb.Eventually(t, func() bool {
			probe := a.Create()
			a.Settled()
			return given(probe.ID) == seqs
		}, "the worker to hear of the change")
	}
	set(core.Disabled)
	heard("")
	a.Complete(first.ID)
	second := a.Create()
	a.Settled()
	if one, two := given(first.ID), given(second.ID); one != "1" || two != "" {
		t.Errorf("disabled: it was given %q of the first and %q of the second", one, two)
	}
	if got := states(a, first.ID, 2); strings.Contains(got, "notification") {
		t.Errorf("disabled, it still counts: %s", got)
	}
	set(core.Active)
	heard("1")
	a.Complete(second.ID)
	a.Settled()
	if one, two := given(first.ID), given(second.ID); one != "1" || two != "2" {
		t.Errorf("enabled again: it was given %q of the first and %q of the second", one, two)
	}
	if n := crmtest.Get[int64](a, `select count(*) from keyline.deliveries where consumer = 'timeline' and state <> 'completed'`); n != 0 {
		t.Errorf("timeline has %d events that are not completed", n)
	}
}

// Promise (P5, P15): an event that no consumer takes is over at once, and one
// that is declared contract-only holds nothing up.
func TestEndToEndAnEventWithoutConsumersIsCompleted(t *testing.T) {
	t.Parallel()
	for name, consumers := range map[string][]keyline.Consumer{
		"no consumer": nil,
		"contract-only": {{
			Name: "forecast", Types: []string{"activity.*"}, Effect: keyline.None(), ContractOnly: true,
		}},
		"other types": {{
			Name: "orders", Types: []string{"order.*"}, Effect: keyline.None(),
			Handle: func(context.Context, *keyline.Delivery) error { panic("not its type") },
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := crmtest.New(t)
			a.Start(keyline.Config{}, consumers...)
			activity := a.Create()
			a.Settled()
			if got := status(a, activity.ID, 1); got != "completed" {
				t.Errorf("the event is %s", got)
			}
		})
	}
}

// Promise (P15): a contract-only consumer beside working ones gets nothing and
// changes nothing for them.
func TestEndToEndAContractOnlyConsumerGetsNothing(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	forecast := keyline.Consumer{Name: "forecast", Types: []string{"activity.*"}, Effect: keyline.None(), ContractOnly: true}
	a.Start(keyline.Config{}, record(a, append(a.Consumers(), forecast))...)
	activity := a.Complete(a.Create().ID)
	a.Settled()
	if got := states(a, activity.ID, 2); got != "calendar completed, dashboard completed, forecast ignored, notification completed, timeline completed" {
		t.Error(got)
	}
	checked(t, a)
}

// Promise (P13): the internal-only type reaches the one consumer that has the
// grant, and no viewer.
func TestEndToEndAnInternalNoteReachesOnlyTheConsumerWithTheGrant(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	a.Start(keyline.Config{}, record(a, a.Consumers())...)
	activity := a.Create()
	if _, err := a.Service.AddNote(t.Context(), crmtest.By("zoe"), activity.ID, "be careful"); err != nil {
		t.Fatal(err)
	}
	a.Complete(activity.ID)
	a.Settled()
	if got := crmtest.Get[string](a, "select string_agg(consumer, ' ') from crm.delivered_log where seq = 2 and mark = 'begin'"); got != "dashboard" {
		t.Errorf("the note went to %s", got)
	}
	counts, err := a.Service.Dashboard(t.Context(), crmtest.Org)
	if err != nil || len(counts) != 2 {
		t.Errorf("the dashboard shows %+v, %v", counts, err)
	}
	if n := crmtest.Get[int64](a, "select sum(events) from crm.dashboard"); n != 3 {
		t.Errorf("the dashboard counted %d of 3 events", n)
	}
	checked(t, a)
}

// Promise (P13): organizations do not mix, even under one activity id.
func TestEndToEndTenantsDoNotMix(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	mine := a.Create()
	theirs := crmtest.By("eve")
	theirs.Organization = "other"
	other, err := a.Service.Create(t.Context(), theirs, crm.NewActivity{Kind: "task", Subject: "theirs"})
	if err != nil {
		t.Fatal(err)
	}
	// The same id in both organizations.
	a.Exec("update crm.activities set id = $1 where organization = 'other'", mine.ID)
	a.Exec("update keyline.records set record_key = 'activity:' || $1::uuid where tenant = 'other'", mine.ID)
	a.Start(keyline.Config{}, record(a, a.Consumers())...)
	if _, err := a.Service.Complete(t.Context(), theirs, mine.ID, "done"); err != nil {
		t.Fatal(err)
	}
	a.Settled()
	if now, err := a.Service.Get(t.Context(), crmtest.Org, mine.ID); err != nil || now.Status != crm.Planned {
		t.Errorf("%+v, %v", now, err)
	}
	timeline, err := a.Service.Timeline(t.Context(), crmtest.Org, mine.ID)
	if err != nil || len(timeline) != 1 {
		t.Errorf("timeline %+v, %v", timeline, err)
	}
	if n := crmtest.Get[int64](a, "select count(*) from crm.timeline where organization = 'other'"); n != 2 {
		t.Errorf("%d lines for the other organization's %s", n, other.ID)
	}
}
