package keyline_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestAppendThroughEveryDriverKeepsEveryField(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	for i, d := range doors(t, db) {
		key := keyline.Key{Tenant: "acme", Record: fmt.Sprintf("activity:%d", i)}
		full := keyline.NewEvent{
			Key: key, Type: "activity.completed", Version: 3, ID: uuid.New(), IdempotencyKey: "request-1",
			Payload:       map[string]any{"by": "u1", "html": "<a&b>", "text": `é " \ 😀 ' $1`, "n": []int{1, 2}},
			CorrelationID: "corr", CausationID: "cause", OccurredAt: time.Date(2020, 2, 29, 23, 59, 59, 123456000, time.FixedZone("", 3600)),
			Headers: map[string]string{"source": "web", "quote": `"'\`}, ExpectedSeq: ptr(int64(0)),
		}
		bare := keyline.NewEvent{Key: key, Type: "activity.noted"}
		first, err := d.append(t.Context(), client, full)
		if err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		if want := (keyline.Appended{Key: key, Seq: 1, ID: full.ID}); first != want {
			t.Errorf("%s: appended %+v, want %+v", d.name, first, want)
		}
		many, err := d.appendMany(t.Context(), client, []keyline.NewEvent{bare, full})
		if err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		if many[0].Seq != 2 || many[0].Duplicate || many[0].ID.Version() != 7 {
			t.Errorf("%s: the second event is %+v, want seq 2 and a UUIDv7", d.name, many[0])
		}
		if want := (keyline.Appended{Key: key, Seq: 1, ID: full.ID, Duplicate: true}); many[1] != want {
			t.Errorf("%s: the repeated event is %+v, want %+v", d.name, many[1], want)
		}
		if err := d.commit(t.Context()); err != nil {
			t.Fatalf("%s: commit: %v", d.name, err)
		}
		checkStream(t, d.name, must(client.Events(t.Context(), db.Pool(), key, 0, 0))(t), full, many[0].ID)
	}
}

func checkStream(t *testing.T, name string, events []keyline.Event, full keyline.NewEvent, second uuid.UUID) {
	t.Helper()
	if len(events) != 2 {
		t.Fatalf("%s: %d events, want 2", name, len(events))
	}
	for i, e := range events {
		if e.CreatedAt.IsZero() || e.Seq != int64(i+1) || e.Key != full.Key {
			t.Errorf("%s: event %d is %+v", name, i, e)
		}
	}
	if !events[1].OccurredAt.Equal(events[1].CreatedAt) {
		t.Errorf("%s: occurred at %s without being told, created at %s", name, events[1].OccurredAt, events[1].CreatedAt)
	}
	want := map[string]string{"source": "web", "quote": `"'\`, keyline.HeaderCorrelationID: "corr", keyline.HeaderCausationID: "cause"}
	e := events[0]
	if e.ID != full.ID || e.Type != full.Type || e.Version != 3 || !e.OccurredAt.Equal(full.OccurredAt) || !cmp.Equal(e.Headers, want) {
		t.Errorf("%s: first event %+v\nheaders want %v", name, e, want)
	}
	if e := events[1]; e.ID != second || e.Version != 1 || string(e.Payload) != "null" || len(e.Headers) != 0 {
		t.Errorf("%s: second event %+v", name, e)
	}
	var got, sent any
	if err := errors.Join(json.Unmarshal(e.Payload, &got), json.Unmarshal(must(json.Marshal(full.Payload))(t), &sent)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("%s: payload (-sent +got)\n%s", name, diff)
	}
}

func TestPayloadBytesAreTakenAsJSON(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	for _, tc := range []struct {
		payload any
		want    string
	}{
		{[]byte(`{"a":1}`), `{"a": 1}`}, {json.RawMessage(`[1,2]`), `[1, 2]`}, {"text", `"text"`}, {nil, `null`},
		{[]byte(nil), `null`}, {json.RawMessage(nil), `null`}, {struct{ A int }{1}, `{"A": 1}`}, {[]byte(` 1e2 `), `100`},
	} {
		a := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Type: "t", Payload: tc.payload}))(t)
		events := must(client.Events(t.Context(), db.Pool(), a.Key, 0, 0))(t)
		if len(events) != 1 || string(events[0].Payload) != tc.want {
			t.Errorf("payload %#v is kept as %v, want %s", tc.payload, events, tc.want)
		}
	}
}

func TestUnusableKeysBecomeTheirOwnRecord(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	for _, key := range []string{"", " ", "\t\n\r\v\f ", strings.Repeat("x", 513), "a\xffb"} {
		e := keyline.NewEvent{Key: keyline.Key{Tenant: "acme", Record: key}, Type: "t", Headers: map[string]string{"a": "b"}}
		a := must(client.Append(t.Context(), db.Pool(), e))(t)
		if a.Key != (keyline.Key{Tenant: "acme", Record: a.ID.String()}) || a.Seq != 1 {
			t.Errorf("key %.20q: appended %+v, want its own id as the key", key, a)
		}
		events := must(client.Events(t.Context(), db.Pool(), a.Key, 1, 1))(t)
		if len(events) != 1 || !cmp.Equal(events[0].Headers, map[string]string{"a": "b", keyline.HeaderFallbackKey: "true"}) {
			t.Errorf("key %.20q: stream %+v, want one flagged event", key, events)
		}
		e.ExpectedSeq = ptr(int64(0))
		_, err := client.Append(t.Context(), db.Pool(), e)
		wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)
	}
	// 512 bytes and no-break spaces are keys.
	for _, key := range []string{strings.Repeat("x", 512), "\u00a0"} {
		a := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: key}, Type: "t"}))(t)
		if a.Key.Record != key {
			t.Errorf("key %.20q: appended under %q", key, a.Key.Record)
		}
	}
	// The flag is append's word alone.
	e := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", Headers: map[string]string{keyline.HeaderFallbackKey: "true"}}
	a := must(client.Append(t.Context(), db.Pool(), e))(t)
	if h := must(client.Events(t.Context(), db.Pool(), a.Key, 0, 0))(t)[0].Headers; len(h) != 0 {
		t.Errorf("an event with a usable key carries %v", h)
	}
}

func TestFallbackIDIsTheCallersElseFromTheIdempotencyKey(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	own := uuid.New()
	a := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Type: "t", ID: own, IdempotencyKey: "k"}))(t)
	if a.ID != own || a.Key.Record != own.String() {
		t.Errorf("appended %+v, want the id %s", a, own)
	}
	first := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Type: "t", IdempotencyKey: "k"}))(t)
	second := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Type: "t", IdempotencyKey: "k", Key: keyline.Key{Record: " "}}))(t)
	other := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Type: "t", IdempotencyKey: "k", Key: keyline.Key{Tenant: "acme"}}))(t)
	if !second.Duplicate || second.ID != first.ID || other.Duplicate || other.ID == first.ID || first.ID.Version() != 8 {
		t.Errorf("first %+v, repeated %+v, of another tenant %+v", first, second, other)
	}
}

func TestExpectedSeq(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := func(expected int64) keyline.NewEvent {
		return keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", ExpectedSeq: &expected}
	}
	for _, tc := range []struct {
		expected int64
		ok       bool
	}{{1, false}, {0, true}, {0, false}, {2, false}, {1, true}, {1 << 62, false}} {
		_, err := client.Append(t.Context(), db.Pool(), event(tc.expected))
		if tc.ok && err != nil {
			t.Fatal(err)
		} else if !tc.ok {
			wantError(t, err, keyline.ErrConflict, keyline.CodeWrongExpectedSeq)
		}
	}
	_, err := client.AppendMany(t.Context(), db.Pool(), []keyline.NewEvent{event(2), event(3), event(3)})
	wantError(t, err, keyline.ErrConflict, keyline.CodeWrongExpectedSeq)
	if n := len(must(client.Events(t.Context(), db.Pool(), keyline.Key{Record: "r"}, 0, 0))(t)); n != 2 {
		t.Errorf("%d events after a batch that failed at its end, want 2", n)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{
		Key: keyline.Key{Record: "r"}, Type: "t", IdempotencyKey: "k", Payload: []byte(`{"a":1.0,"b":2}`), ExpectedSeq: ptr(int64(0)),
	}
	first := must(client.Append(t.Context(), db.Pool(), event))(t)
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: event.Key, Type: "t"}))(t)

	same := event
	same.Payload = []byte(`{"b":2,"a":1}`) // the same to jsonb
	same.Headers = map[string]string{"x": "y"}
	same.ID = first.ID
	if a := must(client.Append(t.Context(), db.Pool(), same))(t); !a.Duplicate || a.ID != first.ID || a.Seq != 1 {
		t.Errorf("repeated with a stale ExpectedSeq: %+v, want the first event", a)
	}
	for name, change := range map[string]func(*keyline.NewEvent){
		"type":    func(e *keyline.NewEvent) { e.Type = "u" },
		"version": func(e *keyline.NewEvent) { e.Version = 2 },
		"payload": func(e *keyline.NewEvent) { e.Payload = []byte(`{"a":1}`) },
		"id":      func(e *keyline.NewEvent) { e.ID = uuid.New() },
	} {
		other := event
		change(&other)
		_, err := client.Append(t.Context(), db.Pool(), other)
		if e := wantError(t, err, keyline.ErrConflict, keyline.CodeIdempotencyConflict); e == nil {
			t.Errorf("other %s was accepted", name)
		}
	}
	elsewhere := event
	elsewhere.Key.Record = "another"
	if a := must(client.Append(t.Context(), db.Pool(), elsewhere))(t); a.Duplicate {
		t.Errorf("the key of another record counted: %+v", a)
	}
	if head := scalar[int64](t, db.Pool(), `select head from keyline.records where record_key = 'r'`); head != 2 {
		t.Errorf("head is %d after repeated and refused appends, want 2", head)
	}
}

func TestEventIDIsUnique(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	id := uuid.New()
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "a"}, Type: "t", ID: id}))(t)
	_, err := client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "b"}, Type: "t", ID: id})
	wantError(t, err, keyline.ErrConflict, keyline.CodeIdempotencyConflict)
}

func TestEventsPagesThroughAStream(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	key := keyline.Key{Tenant: "acme", Record: "r"}
	batch := make([]keyline.NewEvent, 25)
	for i := range batch {
		batch[i] = keyline.NewEvent{Key: key, Type: "t", Payload: i}
	}
	must(client.AppendMany(t.Context(), db.Pool(), batch))(t)
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}))(t) // another tenant's
	var got []int64
	for next := int64(1); ; {
		page := must(client.Events(t.Context(), db.Pool(), key, next, 10))(t)
		for _, e := range page {
			got = append(got, e.Seq)
			if string(e.Payload) != fmt.Sprint(e.Seq-1) {
				t.Errorf("seq %d carries %s", e.Seq, e.Payload)
			}
		}
		if len(page) < 10 {
			break
		}
		next = page[len(page)-1].Seq + 1
	}
	if len(got) != 25 || got[0] != 1 || got[24] != 25 {
		t.Errorf("read seqs %v", got)
	}
	if events := must(client.Events(t.Context(), db.Pool(), keyline.Key{Record: "nothing"}, 0, 0))(t); len(events) != 0 {
		t.Errorf("a record that does not exist has %v", events)
	}
	for _, tc := range []struct {
		key   keyline.Key
		limit int
	}{{keyline.Key{Record: ""}, 1}, {keyline.Key{Record: "a\x00"}, 1}, {keyline.Key{Tenant: "\xff", Record: "r"}, 1}, {key, -1}} {
		_, err := client.Events(t.Context(), db.Pool(), tc.key, 0, tc.limit)
		wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)
	}
}

func TestAppendInAnotherSchema(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.WithSchema("other"))
	client := newClient(t, keyline.ClientConfig{Schema: "other"})
	a := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}))(t)
	if events := must(client.Events(t.Context(), db.Pool(), a.Key, 0, 0))(t); len(events) != 1 {
		t.Errorf("read %v", events)
	}
	tx := must(db.Pool().Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err := newClient(t, keyline.ClientConfig{}).Append(t.Context(), tx, keyline.NewEvent{Type: "t"})
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotInstalled)
	if _, err := keyline.NewClient(keyline.ClientConfig{Schema: "Robert'); --"}); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("schema name was accepted: %v", err)
	}
}
