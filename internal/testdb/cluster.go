package testdb

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// adminTimeout bounds what is done on the maintenance database: it may have to
// wait for another process that runs the migrations.
const adminTimeout = 2 * time.Minute

// cluster is the server that this process tests against.
type cluster struct {
	// admin is the connection string of its maintenance database.
	admin string
	// leave gives up this process's part in the server.
	leave func() error

	mu        sync.Mutex
	templates map[string]string // by key of the schema
}

// settings are what the tests want of a server beyond what pgdev gives it.
func settings() map[string]string {
	return map[string]string{
		"max_prepared_transactions": "32", // two-phase commit is one of the things tested
		"max_locks_per_transaction": "128",
		"log_min_messages":          "warning",
	}
}

// theCluster is chosen once per process.
var theCluster = sync.OnceValues(func() (*cluster, error) {
	c := &cluster{templates: map[string]string{}, leave: func() error { return nil }}
	switch {
	case os.Getenv("DATABASE_URL") != "":
		c.admin = os.Getenv("DATABASE_URL")
	case hasMain.Load() && canShare:
		url, membership, err := joinRun(os.Getppid())
		if err != nil {
			return nil, err
		}
		c.admin, c.leave = url, membership.Close
	default:
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		s, err := pgdev.Start(ctx, pgdev.Options{Settings: settings()})
		if err != nil {
			return nil, err
		}
		c.admin, c.leave = s.URL("postgres"), s.Stop
	}
	chosen.Store(c)
	return c, nil
})

// chosen is theCluster, if any test has asked for it.
var chosen atomic.Pointer[cluster]

// leaveCluster is called when the tests of this process are over.
func leaveCluster() error {
	if c := chosen.Load(); c != nil {
		return c.leave()
	}
	return nil
}

// onAdmin runs f with a connection to the maintenance database. One is opened
// each time: it takes a millisecond, and nothing is left to leak.
func (c *cluster) onAdmin(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.admin)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// withDatabase is connection string s with another database in it.
func withDatabase(s, name string) (string, error) {
	if !strings.HasPrefix(s, "postgres://") && !strings.HasPrefix(s, "postgresql://") {
		return s + " dbname=" + name, nil // of keywords given twice, the last one counts
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", fmt.Errorf("DATABASE_URL: %w", err)
	}
	u.Path, u.RawPath = "/"+name, ""
	return u.String(), nil
}
