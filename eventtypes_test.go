package keyline_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

var completedSchema = json.RawMessage(`{
	"type": "object", "required": ["by"], "additionalProperties": false,
	"properties": {"by": {"type": "string", "minLength": 1}, "minutes": {"type": "integer", "minimum": 0}}
}`)

func activityTypes() []keyline.EventType {
	return []keyline.EventType{
		{Type: "activity.completed", Version: 1, Schema: completedSchema},
		{Type: "activity.completed", Version: 2},
		{Type: "activity.audited", Internal: true},
	}
}

func TestAStrictClientRefusesWhatIsNotRegistered(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	strict := newClient(t, keyline.ClientConfig{EventTypes: activityTypes(), Strict: true})
	open := newClient(t, keyline.ClientConfig{EventTypes: activityTypes()})
	for _, tc := range []struct {
		eventType string
		version   int
		payload   string
		strict    string // the code; "" is accepted
		open      string
	}{
		{"activity.completed", 1, `{"by":"u1","minutes":5}`, "", ""},
		{"activity.completed", 0, `{"by":"u1"}`, "", ""},
		{"activity.completed", 2, `"anything"`, "", ""},
		{"activity.audited", 1, `{}`, "", ""},
		{"activity.completed", 1, `{"by":""}`, keyline.CodeIncompatiblePayload, keyline.CodeIncompatiblePayload},
		{"activity.completed", 1, `{"by":"u1","minutes":-1}`, keyline.CodeIncompatiblePayload, keyline.CodeIncompatiblePayload},
		{"activity.completed", 1, `{"by":"u1","minutes":1e100000}`, "", ""},
		{"activity.completed", 1, `{"by":"u1","secret":"s3cr3t"}`, keyline.CodeIncompatiblePayload, keyline.CodeIncompatiblePayload},
		{"activity.completed", 1, `[]`, keyline.CodeIncompatiblePayload, keyline.CodeIncompatiblePayload},
		{"activity.completed", 3, `{}`, keyline.CodeUnknownEventType, ""},
		{"activity.unheard", 1, `{}`, keyline.CodeUnknownEventType, ""},
	} {
		for client, code := range map[*keyline.Client]string{strict: tc.strict, open: tc.open} {
			_, err := client.Append(t.Context(), db.Pool(),
				keyline.NewEvent{Type: tc.eventType, Version: tc.version, Payload: []byte(tc.payload)})
			if code == "" {
				if err != nil {
					t.Errorf("%s %d %s: %v", tc.eventType, tc.version, tc.payload, err)
				}
				continue
			}
			if e := wantError(t, err, keyline.ErrInvalid, code); strings.Contains(e.Error(), "s3cr3t") {
				t.Errorf("the error quotes the payload: %v", e)
			}
		}
	}
}

func TestEventTypesAreCheckedAtConstruction(t *testing.T) {
	t.Parallel()
	for name, types := range map[string][]keyline.EventType{
		"[0].Type":     {{Type: " "}},
		"[0].Version":  {{Type: "t", Version: -1}},
		"[1]":          {{Type: "t"}, {Type: "t", Version: 1}},
		"[1].Internal": {{Type: "t"}, {Type: "t", Version: 2, Internal: true}},
		"[0].Schema":   {{Type: "t", Schema: []byte(`{"type": 7}`)}},
	} {
		_, err := keyline.NewClient(keyline.ClientConfig{EventTypes: types})
		if e := wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument); e.Field != "EventTypes"+name {
			t.Errorf("%v: error %v is about %q, want EventTypes%s", types, e, e.Field, name)
		}
	}
	for _, schema := range []string{`{"$ref":"file:///etc/hostname"}`, `{"$ref":"https://example.org/s.json"}`, `{`} {
		if _, err := keyline.NewClient(keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: "t", Schema: []byte(schema)}}}); err == nil {
			t.Errorf("schema %s was accepted", schema)
		}
	}
	if _, err := keyline.NewClient(keyline.ClientConfig{PayloadLimit: -1}); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("negative payload limit: %v", err)
	}
}

func TestRegisteredTypesBindEveryLanguage(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{EventTypes: activityTypes(), Strict: true})
	open := newClient(t, keyline.ClientConfig{}) // as a client that knows nothing of the types
	epoch := func() int64 { return scalar[int64](t, db.Pool(), `select registry_epoch from keyline.meta`) }
	before := epoch()
	for i := range 3 {
		if err := client.RegisterEventTypes(t.Context(), db.Pool()); err != nil {
			t.Fatal(err)
		}
		if got := epoch(); got != before+1 {
			t.Fatalf("registry epoch %d after call %d, want %d: once, for the internal type", got, i+1, before+1)
		}
	}
	rows := scalar[string](t, db.Pool(), `select string_agg(concat_ws(' ', type, version, internal, schema is null), ', ' order by type, version) from keyline.event_types`)
	if want := "activity.audited 1 t t, activity.completed 1 f f, activity.completed 2 f t"; rows != want {
		t.Errorf("registered %s, want %s", rows, want)
	}
	for _, e := range []keyline.NewEvent{{Type: "activity.unheard"}, {Type: "activity.completed", Version: 3}} {
		_, err := open.Append(t.Context(), db.Pool(), e)
		wantError(t, err, keyline.ErrInvalid, keyline.CodeUnknownEventType)
	}
	must(open.Append(t.Context(), db.Pool(), keyline.NewEvent{Type: "activity.completed", Version: 2}))(t)

	// A changed schema replaces the old one; types that are not named stay.
	changed := newClient(t, keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: "activity.completed", Version: 2, Schema: []byte(`{"type":"object"}`)}}})
	if err := changed.RegisterEventTypes(t.Context(), db.Connect()); err != nil {
		t.Fatal(err)
	}
	if n := scalar[int64](t, db.Pool(), `select count(*) from keyline.event_types where version = 2 and schema = '{"type":"object"}'`); n != 1 {
		t.Error("the changed schema was not written")
	}
	if n := scalar[int64](t, db.Pool(), `select count(*) from keyline.event_types`); n != 3 {
		t.Errorf("%d types, want 3", n)
	}
	if epoch() != before+1 {
		t.Error("a changed schema raised the registry's epoch: it changes no delivery")
	}
	must(open.Append(t.Context(), db.Pool(), keyline.NewEvent{Type: "activity.unheard"}))(t) // no longer strict
}

func TestRegisteringAtOnceFromManyProcesses(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	pool := wide(db, 8)
	if err := errors.Join(all(8, func(i int) error {
		client, err := keyline.NewClient(keyline.ClientConfig{Strict: true,
			EventTypes: append(activityTypes(), keyline.EventType{Type: fmt.Sprint("own.", i), Internal: i%2 == 0})})
		if err != nil {
			return err
		}
		return client.RegisterEventTypes(t.Context(), pool)
	})...); err != nil {
		t.Fatal(err)
	}
	if n := scalar[int64](t, pool, `select count(*) from keyline.event_types`); n != 11 {
		t.Errorf("%d types, want 11", n)
	}
}

func TestRegisteringAnInternalTypeWaitsForFlushes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{EventTypes: activityTypes()})
	flush := must(db.Connect().Begin(t.Context()))(t)
	exec(t, flush, `select pg_advisory_xact_lock_shared(keyline.barrier_key())`)
	done := make(chan error, 1)
	pool := db.Pool()
	go func() { done <- client.RegisterEventTypes(t.Context(), pool) }()
	// It steps back after its lock timeout and tries again, so that flushes are not held up by it.
	tries := func() bool {
		return scalar[bool](t, flush, `select exists (select from pg_locks where locktype = 'advisory' and not granted)`)
	}
	for _, want := range []bool{true, false, true} {
		testdb.Eventually(t, func() bool { return tries() == want }, "the registration to wait (%v)", want)
	}
	if n := scalar[int64](t, db.Pool(), `select count(*) from keyline.event_types`); n != 0 {
		t.Errorf("%d types were registered beside a flush", n)
	}
	if err := flush.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// Its context ends the tries.
	flush = must(db.Connect().Begin(t.Context()))(t)
	exec(t, flush, `select pg_advisory_xact_lock_shared(keyline.barrier_key())`)
	other := newClient(t, keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: "x", Internal: true}}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- other.RegisterEventTypes(ctx, pool) }()
	testdb.Eventually(t, tries, "the registration to wait")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled registration: %v", err)
	}
	if err := flush.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// silentTx says nothing more once it holds the barrier, until it is told to.
type silentTx struct {
	pgx.Tx
	held chan<- struct{}
	goOn <-chan struct{}
}

func (tx silentTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := tx.Tx.Exec(ctx, sql, args...)
	if err == nil && strings.Contains(sql, "barrier_key") {
		close(tx.held)
		<-tx.goOn
	}
	return tag, err
}

type silentDB struct {
	keyline.Beginner
	held chan<- struct{}
	goOn <-chan struct{}
}

func (db silentDB) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := db.Beginner.BeginTx(ctx, o)
	return silentTx{tx, db.held, db.goOn}, err
}

func TestARegistrationThatFallsSilentHoldsUpFlushesForAMomentOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{EventTypes: activityTypes()})
	held, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	pool := db.Pool()
	go func() { done <- client.RegisterEventTypes(t.Context(), silentDB{pool, held, goOn}) }()
	<-held
	flush := db.Connect()
	exec(t, flush, `set statement_timeout = '30s'`)
	_, err := flush.Exec(t.Context(), `select pg_advisory_xact_lock_shared(keyline.barrier_key())`)
	close(goOn)
	if err != nil {
		t.Errorf("a flush beside it: %v", err)
	}
	if err := <-done; !errors.Is(err, keyline.ErrUnavailable) {
		t.Errorf("the silent one meets %v", err)
	}
	if err := client.RegisterEventTypes(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

func TestRegisteringUnderAnotherDefaultIsolation(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	conn := db.Connect()
	exec(t, conn, `set default_transaction_isolation = 'serializable'`)
	client := newClient(t, keyline.ClientConfig{EventTypes: activityTypes()})
	if err := client.RegisterEventTypes(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if n := scalar[int64](t, conn, `select count(*) from keyline.event_types`); n != 3 {
		t.Errorf("%d types, want 3", n)
	}
	if err := client.RegisterEventTypes(t.Context(), nil); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("no database: %v", err)
	}
}
