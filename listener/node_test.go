package listener

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/store"
)

// node is a listener on a real database; the test plays its claim loop.
type node struct {
	*Listener
	t     *testing.T
	store *store.Store
	log   *logBuffer
	// states are all changes of the policy's state, in order.
	states chan State
}

// hour is a fallback poll that never comes.
const hour = time.Hour

func startNode(t *testing.T, db *testdb.DB, change func(*Config)) *node {
	t.Helper()
	st, err := store.Open(t.Context(), store.Config{Pool: poolConfig(t, db.URL), Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	n := &node{t: t, store: st, log: &logBuffer{}, states: make(chan State, 1000)}
	cfg := Config{
		ListenURL: db.URL, Channel: st.Channel(), ApplicationName: st.ApplicationName(),
		Arming:   func() core.Arming { return st.NewArming() },
		Notify:   st.Notify,
		Hosted:   func() []int32 { return []int32{7} },
		Fallback: hour, Ping: 20 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(n.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	if n.Listener, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	n.changed = func(s State) { n.states <- s }
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

func poolConfig(t *testing.T, url string) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// woken answers every wake with Dry until one has the cause.
func (n *node) woken(c Cause) Wake {
	n.t.Helper()
	for {
		select {
		case w := <-n.Wakes():
			n.Dry(0, false)
			if w.Causes&c != 0 {
				return w
			}
		case <-n.t.Context().Done():
			n.t.Fatalf("no wake with cause %v; %+v", c, n.Status())
		}
	}
}

// becomes answers every wake with Dry until the state changes to the wanted one,
// the wake that came with that included.
func (n *node) becomes(want State) {
	n.t.Helper()
	for {
		select {
		case s := <-n.states:
			if s != want {
				continue
			}
			select {
			case <-n.Wakes():
				n.Dry(0, false)
			default:
			}
			return
		case <-n.Wakes():
			n.Dry(0, false)
		case <-n.t.Context().Done():
			n.t.Fatalf("does not become %v; %+v", want, n.Status())
		}
	}
}

// sentinel makes the node dry, and waits until it is the sentinel and has
// looked once more.
func (n *node) sentinel() {
	n.t.Helper()
	n.Dry(0, false)
	n.becomes(Sentinel)
	if s := n.Status(); s.Mode != Listening || s.State != Sentinel {
		n.t.Fatalf("granted the lock, but %+v", s)
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) count(s string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.buf.Bytes(), []byte(s))
}

// querier is a pool, a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// appendEvent appends to the record and returns its id.
func appendEvent(t *testing.T, on querier, key string) (record int64) {
	t.Helper()
	var seq int64
	err := on.QueryRow(t.Context(), `select seq from keyline.append($1, 'test.happened', '{}')`, key).Scan(&seq)
	if err != nil {
		t.Fatal(err)
	}
	err = on.QueryRow(t.Context(), `select id from keyline.records where record_key = $1`, key).Scan(&record)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// The last statements of a node's two sessions.
const (
	listenSession = "^listen |^$"       // a ping is empty
	armingSession = "advisory|pg_locks" // where a ping looks
)

// terminate ends the backend of the node whose last statement is such a one.
func (n *node) terminate(on querier, statement string) {
	n.t.Helper()
	var killed int
	err := on.QueryRow(n.t.Context(), `select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
		where application_name = $1 and query ~* $2`, n.store.ApplicationName(), statement).Scan(&killed)
	if err != nil {
		n.t.Fatal(err)
	}
	if killed != 1 {
		n.t.Fatalf("terminated %d backends whose last statement is like %q, want 1", killed, statement)
	}
}
