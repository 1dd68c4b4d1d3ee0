package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// step is one call, the same for both publishers.
type step struct {
	events []keyline.NewEvent
	code   string // "": accepted
	want   []string
}

// conformance is what a publisher must do; a result is "record seq duplicate",
// with the record's name left out where it is the event's id.
func conformance() []step {
	in := func(record string, change ...func(*keyline.NewEvent)) keyline.NewEvent {
		e := keyline.NewEvent{Key: keyline.Key{Record: record}, Type: "t", Payload: map[string]int{"a": 1}}
		for _, c := range change {
			c(&e)
		}
		return e
	}
	expect := func(n int64) func(*keyline.NewEvent) { return func(e *keyline.NewEvent) { e.ExpectedSeq = &n } }
	idem := func(k string) func(*keyline.NewEvent) { return func(e *keyline.NewEvent) { e.IdempotencyKey = k } }
	payload := func(p string) func(*keyline.NewEvent) { return func(e *keyline.NewEvent) { e.Payload = []byte(p) } }
	id := func(n byte) func(*keyline.NewEvent) { return func(e *keyline.NewEvent) { e.ID = uuid.UUID{n} } }
	tenant := func(s string) func(*keyline.NewEvent) { return func(e *keyline.NewEvent) { e.Tenant = s } }
	one := func(e keyline.NewEvent) []keyline.NewEvent { return []keyline.NewEvent{e} }
	return []step{
		{one(in("r")), "", []string{"r 1 false"}},
		{one(in("r", expect(1))), "", []string{"r 2 false"}},
		{one(in("r", expect(1))), keyline.CodeWrongExpectedSeq, nil},
		{one(in("r", tenant("acme"))), "", []string{"r 1 false"}},
		{one(in("new", expect(0))), "", []string{"new 1 false"}},
		{one(in("r", idem("k"), id(1))), "", []string{"r 3 false"}},
		{one(in("r", idem("k"), expect(0))), "", []string{"r 3 true"}},
		{one(in("r", idem("k"), payload(`{ "a": 1.0 }`))), "", []string{"r 3 true"}},
		{one(in("r", idem("k"), payload(`{"a":10e-1}`))), "", []string{"r 3 true"}},
		{one(in("r", idem("k"), payload(`{"a":2}`))), keyline.CodeIdempotencyConflict, nil},
		{one(in("r", idem("k"), payload(`{"a":1,"b":null}`))), keyline.CodeIdempotencyConflict, nil},
		{one(in("r", idem("k"), payload(`[1]`))), keyline.CodeIdempotencyConflict, nil},
		{one(in("r", idem("k"), id(2))), keyline.CodeIdempotencyConflict, nil},
		{one(in("other", id(1))), keyline.CodeIdempotencyConflict, nil},
		{one(in("", idem("k"))), "", []string{"1 false"}},
		{one(in(" ", idem("k"))), "", []string{"1 true"}},
		{one(in("", id(9))), "", []string{"1 false"}},
		{one(in("", id(9))), keyline.CodeIdempotencyConflict, nil},
		{one(in("", expect(0))), keyline.CodeInvalidArgument, nil},
		{one(in("r\x00")), keyline.CodeInvalidArgument, nil},
		{one(in("r", payload(`"\u0000"`))), keyline.CodeInvalidPayload, nil},
		{one(in("r", payload(`{"a":"bad"}`))), keyline.CodeIncompatiblePayload, nil},
		{[]keyline.NewEvent{in("b"), in("a"), in("b"), in("r", idem("k")), in("b", idem("x")), in("b", idem("x"))}, "",
			[]string{"b 1 false", "a 1 false", "b 2 false", "r 3 true", "b 3 false", "b 3 true"}},
		// All or nothing.
		{[]keyline.NewEvent{in("b", idem("y"), id(5)), in("fresh"), in("b", expect(3))}, keyline.CodeWrongExpectedSeq, nil},
		{one(in("fresh", expect(0))), "", []string{"fresh 1 false"}},
		{one(in("b", idem("y"), id(5), expect(3))), "", []string{"b 4 false"}},
		{nil, "", nil},
	}
}

var conformingTypes = []keyline.EventType{{Type: "t", Schema: []byte(`{"properties":{"a":{"type":"number"}}}`)}}

func TestBothPublishersAnswerAlike(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{EventTypes: conformingTypes})
	local := must(keyline.NewInProcess(keyline.ClientConfig{EventTypes: conformingTypes}, []string{"t"}))(t)
	ids := map[string][2]uuid.UUID{}
	for i, s := range conformance() {
		for p, publish := range []func() ([]keyline.Appended, error){
			func() ([]keyline.Appended, error) { return client.AppendMany(t.Context(), db.Pool(), s.events) },
			func() ([]keyline.Appended, error) { return local.AppendMany(t.Context(), nil, s.events) },
		} {
			name := fmt.Sprintf("%s, step %d", [2]string{"database", "in process"}[p], i)
			results, err := publish()
			if s.code != "" {
				wantError(t, err, nil, s.code)
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var got []string
			for j, a := range results {
				got = append(got, strings.TrimSpace(fmt.Sprint(strings.Replace(a.Key.Record, a.ID.String(), "", 1), " ", a.Seq, " ", a.Duplicate)))
				pair := ids[fmt.Sprint(i, j)]
				pair[p] = a.ID
				ids[fmt.Sprint(i, j)] = pair
			}
			if !slices.Equal(got, s.want) {
				t.Errorf("%s: %q, want %q", name, got, s.want)
			}
		}
	}
	for place, pair := range ids {
		if pair[0].Version() == 8 && pair[0] != pair[1] {
			t.Errorf("result %s: id %s in the database, %s in process: it follows from the idempotency key", place, pair[0], pair[1])
		}
	}
	for _, key := range []keyline.Key{{Record: "r"}, {Record: "b"}, {Tenant: "acme", Record: "r"}} {
		stored, kept := must(client.Events(t.Context(), db.Pool(), key, 0, 0))(t), local.Events(key)
		if len(stored) != len(kept) {
			t.Errorf("%v: %d events in the database, %d in process", key, len(stored), len(kept))
		}
	}
}

func TestAPinnedInProcessPublisherReadsItsTenantsStreams(t *testing.T) {
	t.Parallel()
	acme := "acme"
	p := must(keyline.NewInProcess(keyline.ClientConfig{Tenant: &acme}, []string{"t"}))(t)
	must(p.Append(t.Context(), nil, keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}))(t)
	for key, want := range map[keyline.Key]int{{Record: "r"}: 1, {Tenant: acme, Record: "r"}: 1, {Tenant: "other", Record: "r"}: 0} {
		if got := len(p.Events(key)); got != want {
			t.Errorf("%v: %d events, want %d", key, got, want)
		}
	}
}

// handled collects what handlers saw.
type handled struct {
	mu   sync.Mutex
	list []string
}

func (h *handled) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, fmt.Sprintf(format, args...))
}

func TestInProcessHandsEventsToTheirConsumersInOrder(t *testing.T) {
	t.Parallel()
	var seen handled
	var p *keyline.InProcess
	consumers := []keyline.Consumer{
		{Name: "first", Types: []string{"activity.*"}, Effect: keyline.None(), Handle: func(ctx context.Context, d *keyline.Delivery) error {
			seen.add("first %s %d", d.Type, d.Seq)
			if d.Seq == 1 {
				// What a handler publishes comes after what waits already.
				_, err := p.Append(ctx, nil, keyline.NewEvent{Key: d.Key, Type: "activity.followed", CausationID: d.ID.String()})
				return err
			}
			return nil
		}},
		{Name: "batch", Types: []string{"*"}, Versions: []int{1}, Effect: keyline.None(), HandleBatch: func(_ context.Context, ds []*keyline.Delivery) error {
			for _, d := range ds {
				seen.add("batch %s %d", d.Type, d.Seq)
				if d.Attempt != 1 || d.Mode != keyline.Live || d.Consumer != "batch" || d.IdempotencyKey == "" {
					t.Errorf("delivery %+v", d)
				}
			}
			return keyline.Skip("seen")
		}},
		{Name: "internal", Types: []string{"*"}, Internal: true, Effect: keyline.None(), Handle: func(_ context.Context, d *keyline.Delivery) error {
			seen.add("internal %s %d", d.Type, d.Seq)
			return nil
		}},
		{Name: "elsewhere", Types: []string{"other.*"}, Effect: keyline.None(), Handle: func(context.Context, *keyline.Delivery) error { panic("not its type") }},
		{Name: "excluded", Types: []string{"*"}, Effect: keyline.None(), Excluded: "why", Handle: func(context.Context, *keyline.Delivery) error { panic("excluded") }},
		{Name: "contract", Types: []string{"*"}, Effect: keyline.None(), ContractOnly: true},
	}
	cfg := keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: "activity.secret", Internal: true}}}
	p = must(keyline.NewInProcess(cfg, []string{"activity.created", "activity.followed", "activity.secret"}, consumers...))(t)
	key := keyline.Key{Record: "activity:1"}
	results := must(p.AppendMany(t.Context(), nil, []keyline.NewEvent{
		{Key: key, Type: "activity.created"}, {Key: key, Type: "activity.created", Version: 2}, {Key: keyline.Key{Record: "activity:2"}, Type: "activity.secret"},
	}))(t)
	if len(results) != 3 {
		t.Fatalf("results %+v", results)
	}
	want := []string{
		"first activity.created 1", "batch activity.created 1", "internal activity.created 1",
		"first activity.created 2", "internal activity.created 2",
		"internal activity.secret 1",
		"first activity.followed 3", "batch activity.followed 3", "internal activity.followed 3",
	}
	if !slices.Equal(seen.list, want) {
		t.Errorf("handled\n%s\nwant\n%s", strings.Join(seen.list, "\n"), strings.Join(want, "\n"))
	}
}

func TestInProcessFailuresAreTheCallersToSee(t *testing.T) {
	t.Parallel()
	bad, worse := errors.New("bad"), errors.New("worse")
	var p *keyline.InProcess
	p = must(keyline.NewInProcess(keyline.ClientConfig{}, []string{"t", "nested"},
		keyline.Consumer{Name: "fails", Types: []string{"t"}, Versions: []int{1}, OnUnsupported: keyline.DeadLetterUnsupported, Effect: keyline.None(),
			Handle: func(ctx context.Context, d *keyline.Delivery) error {
				if d.Seq == 1 {
					if _, err := p.Append(ctx, nil, keyline.NewEvent{Key: d.Key, Type: "nested"}); err != nil {
						t.Error(err)
					}
					return bad
				}
				return nil
			}},
		keyline.Consumer{Name: "nested", Types: []string{"nested"}, Effect: keyline.None(), Handle: func(context.Context, *keyline.Delivery) error { return worse }},
		keyline.Consumer{Name: "panics", Types: []string{"t"}, Effect: keyline.None(), Handle: func(context.Context, *keyline.Delivery) error { panic("boom") }},
		keyline.Consumer{Name: "slow", Types: []string{"t"}, Effect: keyline.None(), Timeout: time.Millisecond, Handle: func(ctx context.Context, _ *keyline.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		keyline.Consumer{Name: "tx", Types: []string{"t"}, Effect: keyline.Database(), HandleTx: func(context.Context, pgx.Tx, *keyline.Delivery) error { return nil }},
	))(t)
	a, err := p.Append(t.Context(), nil, keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"})
	if a.Seq != 1 {
		t.Errorf("appended %+v: an event counts, whatever its consumers do", a)
	}
	for _, want := range []error{bad, worse, context.DeadlineExceeded} {
		if !errors.Is(err, want) {
			t.Errorf("the error lacks %v: %v", want, err)
		}
	}
	for _, want := range []string{"consumer panics: event 1 of r: panic: boom", "consumer tx: event 1 of r: HandleTx needs the transaction"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if _, err = p.Append(t.Context(), nil, keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", Version: 2}); err == nil || !strings.Contains(err.Error(), "version 2 of t is not supported") {
		t.Errorf("an unsupported version: %v", err)
	}
	_, err = p.Append(t.Context(), nil, keyline.NewEvent{Type: "undeclared"})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInProcessType)
	for _, wrong := range []func() (*keyline.InProcess, error){
		func() (*keyline.InProcess, error) { return keyline.NewInProcess(keyline.ClientConfig{}, nil) },
		func() (*keyline.InProcess, error) { return keyline.NewInProcess(keyline.ClientConfig{}, []string{""}) },
		func() (*keyline.InProcess, error) {
			return keyline.NewInProcess(keyline.ClientConfig{}, []string{"t"}, keyline.Consumer{Name: "undeclared effect", Types: []string{"*"}})
		},
		func() (*keyline.InProcess, error) {
			return keyline.NewInProcess(keyline.ClientConfig{Schema: "A"}, []string{"t"})
		},
	} {
		if _, err := wrong(); !errors.Is(err, keyline.ErrInvalid) {
			t.Errorf("accepted: %v", err)
		}
	}
}

// Promise: a handler that ends its goroutine, as t.FailNow does, has failed; others get the event, and whoever publishes next is not kept waiting.
func TestInProcessHandlerThatEndsItsGoroutineFails(t *testing.T) {
	t.Parallel()
	s := newSeen()
	p := must(keyline.NewInProcess(keyline.ClientConfig{}, []string{"t"},
		keyline.Consumer{Name: "gone", Types: []string{"t"}, Effect: keyline.None(), Handle: func(context.Context, *keyline.Delivery) error {
			runtime.Goexit()
			return nil
		}}, recording(s, "stays")))(t)
	for range 2 {
		var err error
		within(t, "Append", func() {
			_, err = p.Append(context.Background(), nil, keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"})
		})
		if err == nil || !strings.Contains(err.Error(), "consumer gone") || !strings.Contains(err.Error(), "ended its goroutine") {
			t.Errorf("said %v", err)
		}
	}
	inOrder(t, s.of("stays", "r"), 2)
}

func TestInProcessKeepsOrderUnderConcurrency(t *testing.T) {
	t.Parallel()
	last := map[string]int64{} // only the one at work writes it: the race detector looks on
	p := must(keyline.NewInProcess(keyline.ClientConfig{}, []string{"t"}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			if d.Seq != last[d.Record]+1 {
				return fmt.Errorf("seq %d of %s after %d", d.Seq, d.Record, last[d.Record])
			}
			last[d.Record] = d.Seq
			return nil
		}}))(t)
	if err := errors.Join(all(8, func(i int) error {
		for j := range 200 {
			if _, err := p.Append(t.Context(), nil, keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprint("r", (i+j)%3)}, Type: "t"}); err != nil {
				return err
			}
		}
		return nil
	})...); err != nil {
		t.Fatal(err)
	}
	if n := last["r0"] + last["r1"] + last["r2"]; n != 1600 {
		t.Errorf("%d events were handled, want 1600", n)
	}
}

func TestInProcessHandleTxIsInASavepoint(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exec(t, db.Pool(), `create table done (seq bigint)`)
	p := must(keyline.NewInProcess(keyline.ClientConfig{}, []string{"t"}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.Database(),
		HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
			if _, err := tx.Exec(ctx, `insert into done values ($1)`, d.Seq); err != nil {
				return err
			}
			if d.Seq == 2 {
				_, err := tx.Exec(ctx, `select 1/0`)
				return err
			}
			return nil
		}}))(t)
	if err := p.Claim(t.Context(), db.Pool()); err != nil {
		t.Fatal(err)
	}
	tx := must(db.Pool().Begin(t.Context()))(t)
	for seq := range 3 {
		_, err := p.Append(t.Context(), tx, keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"})
		if (err != nil) != (seq == 1) {
			t.Errorf("append %d: %v", seq+1, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scalar[string](t, db.Pool(), `select string_agg(seq::text, ' ' order by seq) from done`); got != "1 3" {
		t.Errorf("done: %s, want 1 3", got)
	}
}

// One database, one type: either everybody appends it or one publisher hands it
// out in process.
func TestNoTypeIsPublishedAlongBothWays(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	local := must(keyline.NewInProcess(keyline.ClientConfig{}, []string{"activity.created", "activity.done"}))(t)
	created := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "activity.created"}
	ctx := t.Context()

	// Unclaimed, it belongs to append.
	must(client.Append(ctx, db.Pool(), created))(t)
	_, err := local.Append(ctx, db.Pool(), created)
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInProcessType)

	// Claimed, to the publisher.
	for range 2 {
		if err := local.Claim(ctx, db.Pool()); err != nil {
			t.Fatal(err)
		}
	}
	must(local.Append(ctx, db.Pool(), created))(t)
	_, err = client.Append(ctx, db.Pool(), created)
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInProcessType)
	_, err = client.AppendManySQL(ctx, openSQL(t, "postgres", db.URL), []keyline.NewEvent{created})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInProcessType)
	registering := newClient(t, keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: "activity.done"}}})
	wantError(t, registering.RegisterEventTypes(ctx, db.Pool()), keyline.ErrConflict, keyline.CodeInProcessType)

	// Given back, and registered, to append again.
	if err := local.Release(ctx, db.Pool()); err != nil {
		t.Fatal(err)
	}
	_, err = local.Append(ctx, db.Pool(), created)
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInProcessType)
	must(client.Append(ctx, db.Pool(), created))(t)
	if err := registering.RegisterEventTypes(ctx, db.Pool()); err != nil {
		t.Fatal(err)
	}
	wantError(t, local.Claim(ctx, db.Pool()), keyline.ErrConflict, keyline.CodeInProcessType)
	if err := errors.Join(local.Claim(ctx, nil), local.Release(ctx, nil)); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("no database: %v", err)
	}
}

func TestClaimAndRegistrationAtOnceLetOneThrough(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	pool := db.Pool()
	types := []string{"t"}
	client := newClient(t, keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: "t"}}})
	local := must(keyline.NewInProcess(keyline.ClientConfig{}, types))(t)
	for _, tc := range []struct {
		name   string
		ahead  string // what the other one, which holds the lock, writes
		behind func(keyline.Beginner) error
		undo   string
	}{
		{"registering behind a claim", `update keyline.meta set in_process_types = '{t}'`,
			func(conn keyline.Beginner) error { return client.RegisterEventTypes(t.Context(), conn) }, `update keyline.meta set in_process_types = '{}'`},
		{"claiming behind a registration", `insert into keyline.event_types (type, version) values ('t', 1)`,
			func(conn keyline.Beginner) error { return local.Claim(t.Context(), conn) }, `delete from keyline.event_types`},
	} {
		ahead := must(pool.Begin(t.Context()))(t)
		exec(t, ahead, `select from keyline.meta for update`)
		conn := db.Connect()
		pid := conn.PgConn().PID()
		done := make(chan error, 1)
		go func() { done <- tc.behind(conn) }()
		waitUntilBlocked(t, pool, pid)
		exec(t, ahead, tc.ahead)
		if err := ahead.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Log(tc.name)
		wantError(t, <-done, keyline.ErrConflict, keyline.CodeInProcessType)
		exec(t, pool, tc.undo)
	}
}

// TestInProcessHandlersOwnWhatTheyGet: what one does to its event is seen neither by the next nor in the stream, and an
// error that panics when it is read is that consumer's failure, not the publisher's end.
func TestInProcessHandlersOwnWhatTheyGet(t *testing.T) {
	t.Parallel()
	var got []string
	consumer := func(name string) keyline.Consumer {
		return keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(), Handle: func(_ context.Context, d *keyline.Delivery) error {
			got = append(got, string(d.Payload)+d.Headers["h"])
			copy(d.Payload, "!!!")
			d.Headers["h"] = "!"
			return (*unfit)(nil)
		}}
	}
	p, err := keyline.NewInProcess(keyline.ClientConfig{}, []string{"a"}, consumer("one"), consumer("two"))
	if err != nil {
		t.Fatal(err)
	}
	key := keyline.Key{Record: "r"}
	for range 2 {
		_, err = p.Append(t.Context(), nil, keyline.NewEvent{Key: key, Type: "a", Payload: []byte("123"), Headers: map[string]string{"h": "x"}})
		if err == nil || !strings.Contains(err.Error(), "cannot be read") {
			t.Fatalf("error %v", err)
		}
	}
	for _, e := range p.Events(key) {
		got = append(got, string(e.Payload)+e.Headers["h"])
	}
	if want := []string{"123x", "123x", "123x", "123x", "123x", "123x"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
