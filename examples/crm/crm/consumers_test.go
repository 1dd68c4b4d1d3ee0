package crm_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/internal/testdb"
)

func consumer(t testing.TB, a *crmtest.App, name string) keyline.Consumer {
	t.Helper()
	for _, c := range a.Consumers() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no consumer %s", name)
	return keyline.Consumer{}
}

func deliveriesOf(events []keyline.Event, consumer string) []*keyline.Delivery {
	list := make([]*keyline.Delivery, len(events))
	for i, e := range events {
		list[i] = &keyline.Delivery{Event: e, Consumer: consumer, Attempt: 1, Mode: keyline.Live, IdempotencyKey: e.ID.String() + ":" + consumer}
	}
	return list
}

// story is an activity with events of several types.
func story(t testing.TB, a *crmtest.App) crm.Activity {
	t.Helper()
	activity := a.Create()
	if _, err := a.Service.Reassign(t.Context(), crmtest.By("alice"), activity.ID, "carol"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Service.Reschedule(t.Context(), crmtest.By("carol"), activity.ID, crm.Slot{ScheduledAt: time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)}); err != nil {
		t.Fatal(err)
	}
	return a.Complete(activity.ID)
}

func inTx(t testing.TB, a *crmtest.App, f func(pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), a.Pool, f)
}

func rows(a *crmtest.App, table string) string {
	return string(crmtest.Get[json.RawMessage](a, "select coalesce(jsonb_agg(to_jsonb(t) order by to_jsonb(t)), '[]') from "+table+" t"))
}

func drawn(a *crmtest.App, sequence string) int64 {
	return crmtest.Get[int64](a, "select case when is_called then last_value else 0 end from "+sequence)
}

// Promise (G4.1, G4.2): an event that is handed over again makes no second
// row, changes nothing in the first one, and draws no sequence number.
func TestARedeliveredEventMakesNoSecondRowAndBurnsNoSequenceNumber(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, table string
		rows        int64
	}{{"timeline", "crm.timeline", 4}, {"calendar", "crm.calendar", 1}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a := crmtest.New(t)
			activity := story(t, a)
			c := consumer(t, a, tc.name)
			var first string
			for range 3 {
				for _, d := range deliveriesOf(a.Events(activity.ID), tc.name) {
					if err := inTx(t, a, func(tx pgx.Tx) error { return c.HandleTx(t.Context(), tx, d) }); err != nil {
						t.Fatal(err)
					}
				}
				now := rows(a, tc.table)
				if first == "" {
					first = now
				}
				if now != first {
					t.Errorf("a redelivery changed\n%s\ninto\n%s", first, now)
				}
			}
			if n := crmtest.Get[int64](a, "select count(*) from "+tc.table); n != tc.rows {
				t.Errorf("%d rows, want %d", n, tc.rows)
			}
			if n := drawn(a, tc.table+"_id_seq"); n != tc.rows {
				t.Errorf("%d sequence numbers for %d rows", n, tc.rows)
			}
		})
	}
}

// Promise (G4.1): nor does one that is handed over to several at the same time.
func TestAConcurrentlyRedeliveredEventMakesOneRowAndBurnsNoSequenceNumber(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]string{"timeline": "crm.timeline", "calendar": "crm.calendar"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := crmtest.New(t)
			d := deliveriesOf(a.Events(a.Create().ID), name)[0]
			c := consumer(t, a, name)
			holder, err := a.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = holder.Rollback(t.Context()) }()
			if err := c.HandleTx(t.Context(), holder, d); err != nil {
				t.Fatal(err)
			}
			const others = 6
			errs := make(chan error, others)
			for range others {
				go func() {
					errs <- pgx.BeginFunc(t.Context(), a.Pool, func(tx pgx.Tx) error { return c.HandleTx(t.Context(), tx, d) })
				}()
			}
			testdb.Eventually(t, func() bool {
				return crmtest.Get[int64](a, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == others
			}, "the others to wait for the first one")
			if err := holder.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range others {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if n := crmtest.Get[int64](a, "select count(*) from "+table); n != 1 {
				t.Errorf("%d rows", n)
			}
			if n := drawn(a, table+"_id_seq"); n != 1 {
				t.Errorf("%d sequence numbers for one row", n)
			}
		})
	}
}

// Promise (G4.2): what a rebuild writes, years later, is what was there.
func TestARebuiltTimelineIsTheSame(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	activity := story(t, a)
	c := consumer(t, a, "timeline")
	build := func() string {
		for _, d := range deliveriesOf(a.Events(activity.ID), "timeline") {
			if err := inTx(t, a, func(tx pgx.Tx) error { return c.HandleTx(t.Context(), tx, d) }); err != nil {
				t.Fatal(err)
			}
		}
		return string(crmtest.Get[json.RawMessage](a, "select jsonb_agg(to_jsonb(t) - 'id' order by seq) from crm.timeline t"))
	}
	first := build()
	a.Exec("delete from crm.timeline")
	if again := build(); again != first {
		t.Errorf("first %s\nagain %s", first, again)
	}
	if n := crmtest.Get[int64](a, "select count(*) from crm.timeline t join keyline.events e on e.seq = t.seq and e.occurred_at = t.at"); n != 4 {
		t.Errorf("%d of 4 lines have their event's time", n)
	}
}

// Promise: an older event that comes after a newer one does not turn the entry back.
func TestAnOldEventDoesNotTurnTheCalendarBack(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	activity := story(t, a)
	c := consumer(t, a, "calendar")
	list := deliveriesOf(a.Events(activity.ID), "calendar")
	for _, i := range []int{0, 3, 1, 2, 0} {
		if err := inTx(t, a, func(tx pgx.Tx) error { return c.HandleTx(t.Context(), tx, list[i]) }); err != nil {
			t.Fatal(err)
		}
	}
	if !crmtest.Get[bool](a, "select closed and applied_seq = 4 and owner = 'carol' and starts_at = '2026-05-01 08:00Z' and ends_at - starts_at = '45 min' from crm.calendar") {
		t.Errorf("calendar: %s", rows(a, "crm.calendar"))
	}
}

// Promise: the dashboard counts an event once, however batches overlap or meet.
func TestTheDashboardCountsEachEventOnce(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	one, two := story(t, a), story(t, a)
	c := consumer(t, a, "dashboard")
	var wg sync.WaitGroup
	for _, id := range []crm.Activity{one, two} {
		list := deliveriesOf(a.Events(id.ID), "dashboard")
		for _, batch := range [][]*keyline.Delivery{list[:2], list, list[1:3], list, list[3:]} {
			wg.Go(func() {
				if err := c.HandleBatch(t.Context(), batch); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	want := crmtest.Get[string](a, `select jsonb_object_agg(type, n)::text from (select type, count(*) n from keyline.events group by type) e`)
	have := crmtest.Get[string](a, `select jsonb_object_agg(event_type, n)::text from (select event_type, sum(events) n from crm.dashboard group by event_type) d`)
	if want != have {
		t.Errorf("counted %s, appended %s", have, want)
	}
}

// Promise: a repeated delivery asks the provider again, with the same key, and
// one message goes out; the one who did it gets none.
func TestARepeatedNotificationGoesOutOnce(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	activity := story(t, a)
	c := consumer(t, a, "notification")
	for range 3 {
		for _, d := range deliveriesOf(a.Events(activity.ID), "notification") {
			if err := c.Handle(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
	}
	sent, requests, err := a.Provider.Counts(t.Context())
	if err != nil || sent != 3 || requests != 9 {
		t.Errorf("%d messages of %d requests, %v; carol rescheduled it herself", sent, requests, err)
	}
}

// Promise (P7): what is no activity becomes a dead letter at once, and the
// error does not quote the payload.
func TestAForeignPayloadIsPermanent(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	activity := a.Create()
	foreign := a.Events(activity.ID)[0]
	foreign.Payload = json.RawMessage(`{"version": "hush"}`)
	misplaced := a.Events(activity.ID)[0]
	misplaced.Record = "invoice:7"
	for name, e := range map[string]keyline.Event{"payload": foreign, "record": misplaced} {
		for _, consumer := range []keyline.Consumer{consumer(t, a, "timeline"), consumer(t, a, "calendar")} {
			err := inTx(t, a, func(tx pgx.Tx) error {
				return consumer.HandleTx(t.Context(), tx, deliveriesOf([]keyline.Event{e}, consumer.Name)[0])
			})
			if v, _, _ := keyline.Judge(err); v != keyline.VerdictPermanent {
				t.Errorf("%s, %s: %v", name, consumer.Name, err)
			}
			if name == "payload" && err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("%s: %v", consumer.Name, err)
			}
		}
	}
}
