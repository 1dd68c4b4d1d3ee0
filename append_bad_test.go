package keyline_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// badEvents can never be accepted, and are found before anything is sent.
var badEvents = []struct {
	name   string
	change func(*keyline.NewEvent)
	code   string
	field  string
}{
	{"empty type", func(e *keyline.NewEvent) { e.Type = "" }, keyline.CodeInvalidArgument, "Type"},
	{"blank type", func(e *keyline.NewEvent) { e.Type = " \t" }, keyline.CodeInvalidArgument, "Type"},
	{"long type", func(e *keyline.NewEvent) { e.Type = strings.Repeat("t", 256) }, keyline.CodeInvalidArgument, "Type"},
	{"NUL in type", func(e *keyline.NewEvent) { e.Type = "t\x00" }, keyline.CodeInvalidArgument, "Type"},
	{"type not UTF-8", func(e *keyline.NewEvent) { e.Type = "t\xff" }, keyline.CodeInvalidArgument, "Type"},
	{"negative version", func(e *keyline.NewEvent) { e.Version = -1 }, keyline.CodeInvalidArgument, "Version"},
	{"huge version", func(e *keyline.NewEvent) { e.Version = math.MaxInt32 + 1 }, keyline.CodeInvalidArgument, "Version"},
	{"NUL in tenant", func(e *keyline.NewEvent) { e.Tenant = "\x00" }, keyline.CodeInvalidArgument, "Tenant"},
	{"tenant not UTF-8", func(e *keyline.NewEvent) { e.Tenant = "\xff" }, keyline.CodeInvalidArgument, "Tenant"},
	{"long tenant", func(e *keyline.NewEvent) { e.Tenant = strings.Repeat("t", 513) }, keyline.CodeInvalidArgument, "Tenant"},
	{"NUL in key", func(e *keyline.NewEvent) { e.Record = "a\x00b" }, keyline.CodeInvalidArgument, "Record"},
	{"negative expected seq", func(e *keyline.NewEvent) { e.ExpectedSeq = ptr(int64(-1)) }, keyline.CodeInvalidArgument, "ExpectedSeq"},
	{"expected seq without a key", func(e *keyline.NewEvent) { e.Record, e.ExpectedSeq = "", ptr(int64(0)) }, keyline.CodeInvalidArgument, "ExpectedSeq"},
	{"NUL in idempotency key", func(e *keyline.NewEvent) { e.IdempotencyKey = "\x00" }, keyline.CodeInvalidArgument, "IdempotencyKey"},
	{"long idempotency key", func(e *keyline.NewEvent) { e.IdempotencyKey = strings.Repeat("k", 513) }, keyline.CodeInvalidArgument, "IdempotencyKey"},
	{"NUL in header", func(e *keyline.NewEvent) { e.Headers = map[string]string{"k": "\x00"} }, keyline.CodeInvalidArgument, `Headers["k"]`},
	{"NUL in header's key", func(e *keyline.NewEvent) { e.Headers = map[string]string{"\x00": ""} }, keyline.CodeInvalidArgument, "Headers"},
	{"header not UTF-8", func(e *keyline.NewEvent) { e.Headers = map[string]string{"k": "\xff"} }, keyline.CodeInvalidArgument, `Headers["k"]`},
	{"long headers", func(e *keyline.NewEvent) { e.Headers = map[string]string{"k": strings.Repeat("v", 65536)} }, keyline.CodeInvalidArgument, "Headers"},
	{"NUL in correlation", func(e *keyline.NewEvent) { e.CorrelationID = "\x00" }, keyline.CodeInvalidArgument, "CorrelationID"},
	{"NUL in causation", func(e *keyline.NewEvent) { e.CausationID = "\x00" }, keyline.CodeInvalidArgument, "CausationID"},
	{"year 10000", func(e *keyline.NewEvent) { e.OccurredAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, keyline.CodeInvalidArgument, "OccurredAt"},
	{"before the year 1", func(e *keyline.NewEvent) { e.OccurredAt = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) }, keyline.CodeInvalidArgument, "OccurredAt"},
	{"invalid JSON", func(e *keyline.NewEvent) { e.Payload = []byte(`{"a":`) }, keyline.CodeInvalidPayload, "Payload"},
	{"empty JSON", func(e *keyline.NewEvent) { e.Payload = []byte{} }, keyline.CodeInvalidPayload, "Payload"},
	{"two JSON values", func(e *keyline.NewEvent) { e.Payload = []byte(`1 2`) }, keyline.CodeInvalidPayload, "Payload"},
	{"JSON not UTF-8", func(e *keyline.NewEvent) { e.Payload = []byte("\"\xff\"") }, keyline.CodeInvalidPayload, "Payload"},
	{"not marshalable", func(e *keyline.NewEvent) { e.Payload = math.NaN() }, keyline.CodeInvalidPayload, "Payload"},
	{"escaped NUL in payload", func(e *keyline.NewEvent) { e.Payload = []byte(`{"a":"x\u0000y"}`) }, keyline.CodeInvalidPayload, "Payload"},
	{"escaped NUL in payload's key", func(e *keyline.NewEvent) { e.Payload = []byte(`{"\u0000":1}`) }, keyline.CodeInvalidPayload, "Payload"},
	{"NUL in a Go string", func(e *keyline.NewEvent) { e.Payload = map[string]string{"a": "\x00"} }, keyline.CodeInvalidPayload, "Payload"},
	{"half a surrogate pair", func(e *keyline.NewEvent) { e.Payload = []byte(`"\ud83d"`) }, keyline.CodeInvalidPayload, "Payload"},
	{"number out of range", func(e *keyline.NewEvent) { e.Payload = []byte(`[1e999999999]`) }, keyline.CodeInvalidPayload, "Payload"},
	{"number of too many decimals", func(e *keyline.NewEvent) { e.Payload = []byte(`1e-99999`) }, keyline.CodeInvalidPayload, "Payload"},
	{"long payload", func(e *keyline.NewEvent) { e.Payload = strings.Repeat("x", 1<<20) }, keyline.CodePayloadTooLarge, "Payload"},
	{"small text, long number", func(e *keyline.NewEvent) {
		e.Payload = []byte("[" + strings.Repeat("1e100000,", 10) + "1e100000]")
	}, keyline.CodePayloadTooLarge, "Payload"},
}

func TestBadEventsAreRefusedAndTheTransactionGoesOn(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	tx := must(db.Pool().Begin(t.Context()))(t)
	good := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}
	for _, tc := range badEvents {
		bad := good
		tc.change(&bad)
		_, err := client.Append(t.Context(), tx, bad)
		if e := wantError(t, err, keyline.ErrInvalid, tc.code); e.Field != tc.field {
			t.Errorf("%s: error %v is about %q, want %q", tc.name, e, e.Field, tc.field)
		}
		_, err = client.AppendMany(t.Context(), tx, []keyline.NewEvent{good, bad})
		if e := wantError(t, err, keyline.ErrInvalid, tc.code); e.Field != "events[1]."+tc.field {
			t.Errorf("%s: error %v is about %q, want events[1].%s", tc.name, e, e.Field, tc.field)
		}
	}
	a := must(client.Append(t.Context(), tx, good))(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.Seq != 1 {
		t.Errorf("the good event is %+v: refused ones left something", a)
	}
}

// serverSide are refused by the database alone.
var serverSide = []struct {
	name  string
	event keyline.NewEvent
	class error
	code  string
	state string
}{
	{"wrong expected seq", keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", ExpectedSeq: ptr(int64(7))},
		keyline.ErrConflict, keyline.CodeWrongExpectedSeq, "KL001"},
	{"idempotency conflict", keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", IdempotencyKey: "used", Payload: "other"},
		keyline.ErrConflict, keyline.CodeIdempotencyConflict, "KL002"},
	{"event id exists", keyline.NewEvent{Key: keyline.Key{Record: "s"}, Type: "t", ID: uuid.MustParse("0190d7c8-0000-7000-8000-000000000001")},
		keyline.ErrConflict, keyline.CodeIdempotencyConflict, "KL002"},
	{"payload that the server finds longer", keyline.NewEvent{Type: "t", Payload: []byte("[" + strings.Repeat("1,", 400_000) + "1]")},
		keyline.ErrInvalid, keyline.CodePayloadTooLarge, "KL005"},
	{"in-process type", keyline.NewEvent{Type: "claimed"}, keyline.ErrInvalid, keyline.CodeInProcessType, "KL007"},
}

// savepoints is a transaction of some driver.
type savepoints struct {
	door
	exec func(string) error
}

func TestTheTransactionGoesOnAfterASavepoint(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exec(t, db.Pool(), `update keyline.meta set in_process_types = '{claimed}'`)
	client := newClient(t, keyline.ClientConfig{})
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", IdempotencyKey: "used",
		ID: uuid.MustParse("0190d7c8-0000-7000-8000-000000000001")}))(t)

	tx := must(db.Connect().Begin(t.Context()))(t)
	pgxExec := func(text string) error { _, err := tx.Exec(t.Context(), text); return err }
	list := []savepoints{{pgxDoor("pgx", tx, tx.Commit), pgxExec}}
	for _, driver := range []string{"postgres", "pgx"} {
		sqlTx := must(openSQL(t, driver, db.URL).BeginTx(t.Context(), nil))(t)
		run := func(text string) error { _, err := sqlTx.ExecContext(t.Context(), text); return err }
		list = append(list, savepoints{sqlDoor(driver, sqlTx, func(context.Context) error { return sqlTx.Commit() }), run})
	}
	for i, s := range list {
		for _, tc := range serverSide {
			if err := s.exec("savepoint before"); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			_, err := s.append(t.Context(), client, tc.event)
			wantError(t, err, tc.class, tc.code)
			var state interface{ SQLState() string }
			if !errors.As(err, &state) || state.SQLState() != tc.state {
				t.Errorf("%s: %s: error %v, want SQLSTATE %s", s.name, tc.name, err, tc.state)
			}
			// The transaction is aborted, which has a code of its own.
			_, err = s.append(t.Context(), client, keyline.NewEvent{Type: "t"})
			wantError(t, err, nil, keyline.CodeTransactionAborted)
			if err := s.exec("rollback to savepoint before"); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
		}
		a, err := s.append(t.Context(), client, keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", ExpectedSeq: ptr(int64(i + 1))})
		if err != nil || a.Seq != int64(i+2) {
			t.Errorf("%s: after the savepoints: %+v, %v", s.name, a, err)
		}
		if err := s.commit(t.Context()); err != nil {
			t.Errorf("%s: commit: %v", s.name, err)
		}
	}
}

func TestAClientPinnedToATenantIsItsAlone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tenant := "acme"
	client := newClient(t, keyline.ClientConfig{Tenant: &tenant})
	tenant = "changed by the caller"
	for _, given := range []string{"", "acme"} {
		a := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: given, Record: "r"}, Type: "t"}))(t)
		if a.Key.Tenant != "acme" {
			t.Errorf("tenant %q was appended as %+v", given, a)
		}
	}
	other := keyline.Key{Tenant: "globex", Record: "r"}
	_, err := client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: other, Type: "t"})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeTenantMismatch)
	_, err = client.AppendMany(t.Context(), db.Pool(), []keyline.NewEvent{{Type: "t"}, {Key: other, Type: "t"}})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeTenantMismatch)
	_, err = client.Events(t.Context(), db.Pool(), other, 0, 0)
	wantError(t, err, keyline.ErrInvalid, keyline.CodeTenantMismatch)
	if events := must(client.Events(t.Context(), db.Pool(), keyline.Key{Record: "r"}, 0, 0))(t); len(events) != 2 {
		t.Errorf("its own stream has %d events, want 2", len(events))
	}
	if n := scalar[int64](t, db.Pool(), `select count(*) from keyline.records where tenant <> 'acme'`); n != 0 {
		t.Errorf("%d records of other tenants", n)
	}
	empty := newClient(t, keyline.ClientConfig{Tenant: ptr("")})
	_, err = empty.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: other, Type: "t"})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeTenantMismatch)
}

func TestErrorsThatAreNotAboutTheEvent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Type: "t"}

	_, err := client.Append(t.Context(), nil, event)
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = client.Append(cancelled, db.Pool(), event)
	wantError(t, err, context.Canceled, keyline.CodeCancelled)

	tx := must(db.Pool().Begin(t.Context()))(t)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = client.Append(t.Context(), tx, event)
	wantError(t, err, pgx.ErrTxClosed, keyline.CodeTransactionClosed)

	sqlTx := must(openSQL(t, "postgres", db.URL).BeginTx(t.Context(), nil))(t)
	if err := sqlTx.Rollback(); err != nil {
		t.Fatal(err)
	}
	_, err = client.AppendSQL(t.Context(), sqlTx, event)
	wantError(t, err, sql.ErrTxDone, keyline.CodeTransactionClosed)

	for _, driver := range []string{"postgres", "pgx"} {
		gone := openSQL(t, driver, "postgres://nobody@/nothing?host=/nonexistent&connect_timeout=5")
		_, err = client.AppendSQL(t.Context(), gone, event)
		wantError(t, err, keyline.ErrUnavailable, keyline.CodeUnavailable)
	}

	readOnly := must(db.Connect().BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly}))(t)
	_, err = client.Append(t.Context(), readOnly, event)
	wantError(t, err, keyline.ErrUnavailable, keyline.CodeUnavailable)
}

func TestRepeatableReadConflictsAreToBeRunAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}
	must(client.Append(t.Context(), db.Pool(), event))(t)
	tx := must(db.Connect().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
	exec(t, tx, `select 1`) // takes the snapshot
	must(client.Append(t.Context(), db.Pool(), event))(t)
	_, err := client.Append(t.Context(), tx, event)
	wantError(t, err, keyline.ErrConflict, keyline.CodeSerialization)
}

// Promise: a number is refused before anything is sent, where the database could not hold it: an error of the database's would cost the caller's transaction.
func TestNumbersAreTakenAsTheDatabaseTakesThem(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tx := must(db.Pool().Begin(t.Context()))(t)
	defer tx.Rollback(context.Background())
	client := newClient(t, keyline.ClientConfig{})
	for _, text := range []string{"1e131071", "1e131072", "12e131070", "12e131071", "0.5e131072", "0.5e131073", "0.00001e131076", "0.00001e131077", "-0e131073", "0e99999",
		"1e-16383", "1e-16384", "1.5e-16382", "1.5e-16383", "0.0e-16383", "0." + strings.Repeat("0", 20000) + "1e19000", "0." + strings.Repeat("1", 16383),
		"0." + strings.Repeat("1", 16384), strings.Repeat("1", 131072), strings.Repeat("1", 131073), "[[1],{\"a\":-1E+131072}]"} {
		_, refused := db.Pool().Exec(t.Context(), "select $1::jsonb", text)
		_, err := client.Append(t.Context(), tx, keyline.NewEvent{Key: keyline.Key{Record: "n:1"}, Type: "n", Payload: json.RawMessage(text)})
		if (err == nil) != (refused == nil) {
			t.Errorf("%.20s… of %d bytes: append %v, database %v", text, len(text), err, refused)
		}
		if err != nil {
			wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidPayload)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("the transaction was lost: %v", err)
	}
}
