package keylinetest

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Main runs a package's tests, for TestMain: os.Exit(keylinetest.Main(m)). It is optional: with it, all
// packages of one `go test` share one server; a package without it starts its own.
func Main(m *testing.M) int { return testdb.Shared(m) }

// DB is a database that belongs to one test, with Keyline's schema installed. It
// goes when the test ends. Its methods fail the test where something goes wrong, and are to
// be called on the test's goroutine.
type DB struct {
	// URL is the connection string, for any driver.
	URL string
	// Pool is a pool on it, closed when the test ends.
	Pool *pgxpool.Pool
	// Schema is Keyline's schema.
	Schema string

	t      testing.TB
	client *keyline.Client
}

// Option changes what New makes.
type Option func(*settings)

type settings struct{ schema []testdb.Option }

// WithSchema installs Keyline in a schema of another name than "keyline".
func WithSchema(name string) Option {
	return func(s *settings) { s.schema = append(s.schema, testdb.WithSchema(name)) }
}

// New makes a database for a test, in some ten milliseconds once a first test has had one. Tests may run in parallel: each has its own.
func New(t testing.TB, options ...Option) *DB {
	t.Helper()
	var s settings
	for _, o := range options {
		o(&s)
	}
	made := testdb.New(t, s.schema...)
	client, err := keyline.NewClient(keyline.ClientConfig{Schema: made.Schema})
	if err != nil {
		t.Fatalf("keylinetest: %v", err)
	}
	return &DB{URL: made.URL, Pool: made.Pool(), Schema: made.Schema, t: t, client: client}
}

// Append appends events in a transaction of its own, for tests that are about
// consumers; a test of code that appends calls that code.
func (db *DB) Append(events ...keyline.NewEvent) []keyline.Appended {
	db.t.Helper()
	appended, err := db.client.AppendMany(db.t.Context(), db.Pool, events)
	if err != nil {
		db.t.Fatalf("keylinetest: %v", err)
	}
	return appended
}

// Events reads a record's stream, from its first event on.
func (db *DB) Events(key keyline.Key) []keyline.Event {
	db.t.Helper()
	var all []keyline.Event
	for {
		page, err := db.client.Events(db.t.Context(), db.Pool, key, int64(len(all))+1, keyline.DefaultEventsLimit)
		if err != nil {
			db.t.Fatalf("keylinetest: %v", err)
		}
		if all = append(all, page...); len(page) < keyline.DefaultEventsLimit {
			return all
		}
	}
}

// Operator does what operators do, under the name "test". Acts on a record, such as
// to retry a dead letter, wait for a worker: run them beside Worker.Run, or with a
// context that ends soon, and the next Run applies what was asked for.
func (db *DB) Operator() keyline.Operator {
	db.t.Helper()
	o, err := keyline.NewOperator(db.Pool, keyline.OperatorConfig{Schema: db.Schema, Actor: "test", Role: keyline.RoleOperator})
	if err != nil {
		db.t.Fatalf("keylinetest: %v", err)
	}
	return o
}

// States are the states of an event's deliveries, by consumer: "completed", "retry_scheduled", "dead_letter" and so on.
func (db *DB) States(event uuid.UUID) map[string]string {
	db.t.Helper()
	v, err := db.Operator().InspectEvent(db.t.Context(), event)
	if err != nil {
		db.t.Fatalf("keylinetest: %v", err)
	}
	return v.Deliveries
}

// DeadLetters are the deliveries that were given up and are open, the newest first; at most a thousand.
func (db *DB) DeadLetters() []keyline.DeadLetter {
	db.t.Helper()
	list, err := db.Operator().DeadLetters(db.t.Context(), keyline.DeadLetterFilter{Statuses: []string{"open"}, Limit: 1000})
	if err != nil {
		db.t.Fatalf("keylinetest: %v", err)
	}
	return list
}

// AssertState reports an error unless an event's delivery to a consumer is in a state.
func (db *DB) AssertState(event uuid.UUID, consumer, want string) {
	db.t.Helper()
	if got := db.States(event)[consumer]; got != want {
		db.t.Errorf("keylinetest: the delivery of event %s to %s is %q, want %q", event, consumer, got, want)
	}
}

// AssertNoDeadLetters reports each delivery that was given up, with why.
func (db *DB) AssertNoDeadLetters() {
	db.t.Helper()
	for _, d := range db.DeadLetters() {
		db.t.Errorf("keylinetest: event %d (%s) of %s is a dead letter of %s after %d runs: %s: %s", d.Seq, d.Type, d.Key, d.Consumer, d.Attempt, d.Code, d.Message)
	}
}
