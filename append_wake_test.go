package keyline_test

import (
	"errors"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestASavepointTakesHeadEventAndWakeStateBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Key: keyline.Key{Record: "old"}, Type: "t"}
	must(client.Append(t.Context(), db.Pool(), event))(t)
	// As after a hand-back: due later, and wanting another worker's consumer.
	exec(t, db.Pool(), `update keyline.mailboxes set due_at = now() + interval '1 day', wants = '{1}', wants_due_at = now()`)
	state := `select coalesce(string_agg(concat_ws(' ', r.record_key, r.head, r.cursor, m.due_at, m.wants, m.wants_due_at, e.seq), ', ' order by r.id, e.seq), '')
		from keyline.records r left join keyline.mailboxes m on m.record_id = r.id left join keyline.events e on e.record_id = r.id
		where r.record_key <> 'kept'`
	before := scalar[string](t, db.Pool(), state)

	listen, sleeper := db.Connect(), db.Connect()
	exec(t, listen, `listen keyline_wake`)
	exec(t, sleeper, `select pg_advisory_lock(keyline.arm_key())`) // somebody sleeps: appends notify

	tx := must(db.Connect().Begin(t.Context()))(t)
	inner := must(tx.Begin(t.Context()))(t)
	must(client.Append(t.Context(), inner, event))(t)
	must(client.Append(t.Context(), inner, keyline.NewEvent{Key: keyline.Key{Record: "new"}, Type: "t"}))(t)
	if during := scalar[string](t, tx, state); during == before {
		t.Fatal("the appends changed nothing that this test sees")
	}
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(client.Append(t.Context(), tx, keyline.NewEvent{Key: keyline.Key{Record: "kept"}, Type: "t"}))(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept := scalar[string](t, db.Pool(), `select id::text from keyline.records where record_key = 'kept'`)
	n, err := listen.WaitForNotification(t.Context())
	if err != nil || n.Payload != kept {
		t.Errorf("woken by %+v (%v), want the record that was kept, %s", n, err, kept)
	}
	if after := scalar[string](t, db.Pool(), state); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestAppendMakesTheMailboxDue(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}
	append1 := func() { must(client.Append(t.Context(), db.Pool(), event))(t) }
	append1()
	due := `select due_at <= clock_timestamp() and wants is null and wants_due_at is null from keyline.mailboxes`
	if !scalar[bool](t, db.Pool(), due) {
		t.Error("a new record's mailbox is not due")
	}
	for _, state := range []string{
		`due_at = 'infinity', wants = '{1}', wants_due_at = now() + interval '1 hour'`, // after a hand-back to another worker
		`due_at = now() + interval '1 minute'`,                                         // in backoff
		`due_at = now() - interval '1 minute', wants = '{1}', wants_due_at = now()`,
		`due_at = now() - interval '1 minute'`,
	} {
		exec(t, db.Pool(), `update keyline.mailboxes set wants = null, wants_due_at = null`)
		exec(t, db.Pool(), `update keyline.mailboxes set `+state)
		append1()
		if !scalar[bool](t, db.Pool(), due) {
			t.Errorf("an append did not make the mailbox due that had %s", state)
		}
	}
	// A claimed one is its holder's.
	exec(t, db.Pool(), `update keyline.mailboxes set due_at = 'infinity', claimed_by = 1, claimed_at = now(), token = 5`)
	append1()
	if !scalar[bool](t, db.Pool(), `select due_at = 'infinity' and claimed_by = 1 and token = 5 from keyline.mailboxes`) {
		t.Error("an append changed a claimed mailbox")
	}
}

func TestWakeOffAllowsTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	listen, sleeper := db.Connect(), db.Connect()
	exec(t, listen, `listen keyline_wake`)
	exec(t, sleeper, `select pg_advisory_lock(keyline.arm_key())`)
	event := keyline.NewEvent{Key: keyline.Key{Record: "silent"}, Type: "t"}
	prepare := func(wake string) error {
		conn := db.Connect()
		exec(t, conn, `begin`)
		exec(t, conn, `set local keyline.wake = `+wake)
		must(client.Append(t.Context(), conn, event))(t)
		_, err := conn.Exec(t.Context(), `prepare transaction '`+db.Name+`'`)
		return err
	}
	var state interface{ SQLState() string }
	if err := prepare("on"); !errors.As(err, &state) || state.SQLState() != "0A000" {
		t.Errorf("PREPARE TRANSACTION with the wake on: %v; this test sees nothing", err)
	}
	if err := prepare("off"); err != nil {
		t.Fatalf("PREPARE TRANSACTION with keyline.wake = off: %v", err)
	}
	exec(t, db.Pool(), `commit prepared '`+db.Name+`'`)
	if n := len(must(client.Events(t.Context(), db.Pool(), event.Key, 0, 0))(t)); n != 1 {
		t.Errorf("%d events, want that of the prepared transaction", n)
	}
	loud := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "loud"}, Type: "t"}))(t)
	n, err := listen.WaitForNotification(t.Context())
	if want := scalar[string](t, db.Pool(), `select id::text from keyline.records where record_key = 'loud'`); err != nil || n.Payload != want {
		t.Errorf("the first notification is %+v (%v), want that of %s, %s", n, err, loud.Key.Record, want)
	}
}
