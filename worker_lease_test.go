package keyline_test

import (
	"context"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestClaimIsDurableBeforeTheHandlerAndLivesAsLongAsItRuns(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	release := make(chan struct{})
	claimed := make(chan bool, 1)
	block := func(_ context.Context, d *keyline.Delivery) error {
		var n int
		// On another connection: what it sees has been committed.
		err := db.Pool().QueryRow(context.Background(), "select count(*) from keyline.mailboxes where claimed_by is not null and token = $1", d.Token).Scan(&n)
		claimed <- err == nil && n == 1
		<-release
		s.add(d)
		return nil
	}
	c := keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(), Handle: block}
	startWorker(t, db, keyline.Config{Name: "one", Lease: shortLease}, c)
	startWorker(t, db, keyline.Config{Name: "two", Beside: "one", Lease: shortLease}, c)
	appendN(t, db, "thing:1", 2)
	if !<-claimed {
		t.Error("the handler runs under a claim that nobody else can see")
	}
	begun := scalar[int64](t, db.Pool(), "select min(beat) from keyline.workers")
	testdb.Eventually(t, func() bool {
		return scalar[int64](t, db.Pool(), "select min(beat) from keyline.workers where status = 'live'") >= begun+5
	}, "both workers renew five times, which is more than a lease")
	close(release)
	s.wait(t, 2)
	settled(t, db)
	inOrder(t, s.of("c", "thing:1"), 2)
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.workers where status <> 'live'"); n != 0 {
		t.Errorf("%d workers were taken for lost", n)
	}
}

func TestStatesOfAnEventAreShownByTheViews(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "fine"),
		recording(s, "elsewhere", func(c *keyline.Consumer) { c.Types = []string{"other.*"} }),
		keyline.Consumer{Name: "retries", Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error { s.add(d); return errFails }},
		keyline.Consumer{Name: "dies", Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error { s.add(d); return keyline.Permanent(errFails) }},
		keyline.Consumer{Name: "parks", Types: []string{"*"}, Effect: keyline.None(), OnDead: keyline.Park,
			Handle: func(_ context.Context, d *keyline.Delivery) error { s.add(d); return keyline.Permanent(errFails) }},
		keyline.Consumer{Name: "skips", Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error { s.add(d); return keyline.Skip("no need") }},
		keyline.Consumer{Name: "old", Types: []string{"*"}, Effect: keyline.None(), Versions: []int{7},
			Handle: func(context.Context, *keyline.Delivery) error { t.Error("version 1"); return nil }},
	)
	appendN(t, db, "thing:1", 1)
	s.wait(t, 5)
	want := map[string]string{"fine": "completed", "elsewhere": "ignored", "retries": "retry_scheduled", "dies": "dead_letter",
		"parks": "parked", "skips": "ignored", "old": "skipped_unsupported_version"}
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes where claimed_by is null") == 1
	}, "the record is handed back")
	for consumer, state := range want {
		if got := scalar[string](t, db.Pool(), "select state from keyline.deliveries where consumer = $1", consumer); got != state {
			t.Errorf("%s is %s, want %s", consumer, got, state)
		}
	}
	if got := scalar[string](t, db.Pool(), "select state from keyline.event_status"); got != "retry_scheduled" {
		t.Errorf("the event is %s", got)
	}
}

// An event of an internal type passes a consumer without the grant: it has not been done.
func TestAnInternalEventIsShownAsIgnoredByWhoHasNoGrant(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	client := newClient(t, keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: "secret.thing", Internal: true}}})
	if err := client.RegisterEventTypes(t.Context(), db.Pool()); err != nil {
		t.Fatal(err)
	}
	startWorker(t, db, keyline.Config{}, recording(s, "granted", func(c *keyline.Consumer) { c.Internal = true }), recording(s, "plain"))
	id := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "thing:1"}, Type: "secret.thing"}))(t).ID
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "thing:1"}, Type: "thing.done"}))(t)
	s.wait(t, 3)
	settled(t, db)
	for consumer, states := range map[string]string{"granted": "completed completed", "plain": "ignored completed"} {
		if got := scalar[string](t, db.Pool(), "select string_agg(state, ' ' order by seq) from keyline.deliveries where consumer = $1", consumer); got != states {
			t.Errorf("%s: %s, want %s", consumer, got, states)
		}
	}
	if got := must(newOperator(t, db, keyline.RoleOperator).InspectEvent(t.Context(), id))(t).Deliveries["plain"]; got != "ignored" {
		t.Errorf("an operator reads %s", got)
	}
}
