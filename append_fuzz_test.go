package keyline_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// FuzzAppend: whatever the arguments are, an append either keeps exactly what
// was sent or says in a typed error that it is invalid, and the transaction goes
// on from a savepoint. What the client accepts the server refuses only for what
// the client leaves to it (numbers, depth, the length of its own text).
func FuzzAppend(f *testing.F) {
	type seed struct {
		tenant, record, eventType string
		version                   int
		payload                   []byte
		headerKey, headerValue    string
		idempotency, correlation  string
		id                        []byte
		unix, nanos               int64
		expected                  int64
	}
	for _, s := range []seed{
		{record: "activity:42", eventType: "activity.completed", version: 1, payload: []byte(`{"by":"u1"}`), expected: -2},
		{tenant: "acme", record: "r", eventType: "t", payload: []byte(`[1.50,1e3,-0,"\ud83d\ude00\\u0000"]`), headerKey: "k", headerValue: "v",
			idempotency: "k", correlation: "c", id: make([]byte, 16), unix: 1e9, nanos: 999999999},
		{record: " \t\v", eventType: "t", payload: []byte(`null`), expected: -2},
		{record: strings.Repeat("é", 257), eventType: "t", payload: []byte(`""`), idempotency: "k", expected: -2},
		{record: "a\xff", eventType: "t", payload: []byte(`1`), expected: 0},
		{record: "a\x00", eventType: "t\x00", payload: []byte(`"\u0000"`), headerKey: "\x00", headerValue: "\xff"},
		{eventType: " ", payload: []byte(`{`), version: -1, expected: -1},
		{eventType: "t", payload: []byte(`1e-99999`), expected: -2},
		{eventType: "t", payload: []byte(`"\ud800"`), expected: -2, unix: math.MaxInt64},
		{eventType: "t", payload: []byte(strings.Repeat("[", 9000) + strings.Repeat("]", 9000)), expected: -2, unix: -62135596800},
		{record: "'; drop table keyline.events; --", eventType: "$1", payload: []byte(`{"$1":"'"}`), headerKey: `"`, headerValue: `\`, expected: -2},
		{record: "keyline_fallback_key", eventType: "t", payload: []byte(`{"a":1,"a":2}`), headerKey: keyline.HeaderFallbackKey, headerValue: "true", expected: -2},
		{record: "r", eventType: "t", payload: []byte(`0.1e+5`), headerKey: keyline.HeaderCorrelationID, headerValue: "x", expected: 1 << 62},
	} {
		f.Add(s.tenant, s.record, s.eventType, s.version, s.payload, s.headerKey, s.headerValue, s.idempotency, s.correlation, s.id, s.unix, s.nanos, s.expected)
	}
	db := testdb.New(f)
	conn := db.Connect()
	client := newClient(f, keyline.ClientConfig{})
	f.Fuzz(func(t *testing.T, tenant, record, eventType string, version int, payload []byte, headerKey, headerValue, idempotency, correlation string,
		id []byte, unix, nanos, expected int64) {
		e := keyline.NewEvent{Key: keyline.Key{Tenant: tenant, Record: record}, Type: eventType, Version: version, Payload: payload,
			IdempotencyKey: idempotency, CorrelationID: correlation, Headers: map[string]string{headerKey: headerValue}}
		if len(id) == 16 {
			e.ID = uuid.UUID(id)
		}
		if unix != 0 {
			e.OccurredAt = time.Unix(unix, nanos)
		}
		if expected > -2 {
			e.ExpectedSeq = &expected
		}
		checkFuzzed(t, conn, client, e)
	})
}

func checkFuzzed(t *testing.T, conn *pgx.Conn, client *keyline.Client, e keyline.NewEvent) {
	t.Helper()
	tx := must(conn.Begin(t.Context()))(t)
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	inner := must(tx.Begin(t.Context()))(t)
	a, err := client.Append(t.Context(), inner, e)
	if err != nil {
		if rollbackErr := inner.Rollback(t.Context()); rollbackErr != nil {
			t.Fatalf("the savepoint does not help after %v: %v", err, rollbackErr)
		}
		checkRefusal(t, err)
		// As one of several it is refused too, for the same reason.
		if _, manyErr := client.AppendMany(t.Context(), tx, []keyline.NewEvent{e}); keyline.ErrorCode(manyErr) != keyline.ErrorCode(err) {
			t.Errorf("alone: %v\nin a batch: %v", err, manyErr)
		}
		return
	}
	checkKept(t, must(client.Events(t.Context(), inner, a.Key, 0, 0))(t), a, e)
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := must(client.AppendMany(t.Context(), tx, []keyline.NewEvent{e}))(t)[0]
	checkKept(t, must(client.Events(t.Context(), tx, b.Key, 0, 0))(t), b, e)
	if e.IdempotencyKey != "" {
		if again := must(client.Append(t.Context(), tx, e))(t); again.ID != b.ID || !again.Duplicate {
			t.Errorf("repeated: %+v, first: %+v", again, b)
		}
	}
}

// checkRefusal: only an invalid argument, or a seq that an empty database
// cannot have, is a reason to refuse.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	var typed *keyline.Error
	if !errors.As(err, &typed) {
		t.Fatalf("untyped error %v", err)
	}
	var server interface{ SQLState() string }
	if !errors.As(err, &server) {
		if !errors.Is(err, keyline.ErrInvalid) {
			t.Errorf("refused by the client, not as invalid: %v", err)
		}
		return
	}
	switch server.SQLState() {
	case "KL001", "KL003", "KL005", "22003", "54001":
	default:
		t.Errorf("the client let through what the server refuses: %v", err)
	}
}

func checkKept(t *testing.T, events []keyline.Event, a keyline.Appended, sent keyline.NewEvent) {
	t.Helper()
	if len(events) != 1 || events[0].Seq != 1 || events[0].ID != a.ID || events[0].Key != a.Key {
		t.Fatalf("appended %+v, read %+v", a, events)
	}
	got := events[0]
	if got.Type != sent.Type || got.Version != max(sent.Version, 1) || got.Tenant != sent.Tenant || sent.ID != uuid.Nil && got.ID != sent.ID {
		t.Errorf("sent %+v, kept %+v", sent, got)
	}
	if fellBack := got.Headers[keyline.HeaderFallbackKey] == "true"; fellBack != (got.Record == got.ID.String() && got.Record != sent.Record) {
		t.Errorf("record %q as sent, %q as kept, headers %v", sent.Record, got.Record, got.Headers)
	} else if !fellBack && got.Record != sent.Record {
		t.Errorf("record %q was kept as %q", sent.Record, got.Record)
	}
	want := map[string]string{}
	for k, v := range sent.Headers {
		if k != keyline.HeaderFallbackKey {
			want[k] = v
		}
	}
	if sent.CorrelationID != "" {
		want[keyline.HeaderCorrelationID] = sent.CorrelationID
	}
	delete(got.Headers, keyline.HeaderFallbackKey)
	if !cmp.Equal(got.Headers, want) {
		t.Errorf("headers %q were kept as %q", want, got.Headers)
	}
	if !sent.OccurredAt.IsZero() && sent.OccurredAt.Sub(got.OccurredAt).Abs() > time.Microsecond {
		t.Errorf("occurred at %s, kept as %s", sent.OccurredAt, got.OccurredAt)
	}
	payload, _ := sent.Payload.([]byte)
	if payload == nil {
		payload = []byte("null")
	}
	var before, after any
	if json.Unmarshal(payload, &before) == nil && json.Unmarshal(got.Payload, &after) == nil && !reflect.DeepEqual(before, after) {
		t.Errorf("payload %s was kept as %s", payload, got.Payload)
	}
	if !utf8.Valid(got.Payload) {
		t.Errorf("payload %q is not UTF-8", got.Payload)
	}
}
