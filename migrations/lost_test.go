package migrations_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

// lostConn loses its client once that has said so many words: the server gets the last one, and after it nothing, or the end of the
// connection. The client hears nothing more either way.
type lostConn struct {
	net.Conn
	cut  bool
	mu   sync.Mutex
	left int
	lost chan struct{} // closed when it is
	over chan struct{} // closed when the test is
}

func (c *lostConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	if c.left--; c.left == 0 {
		close(c.lost)
		if c.cut {
			_ = c.Conn.Close()
		}
	}
	return n, err
}

func (c *lostConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.lost:
		<-c.over
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *lostConn) Close() error {
	select {
	case <-c.over:
		return c.Conn.Close()
	default:
		return nil // a frozen client closes nothing
	}
}

// loseMigrator migrates and is lost after so many words; lost is false where it was done before.
func loseMigrator(t *testing.T, db *testdb.DB, words int, cut bool, act func(context.Context, *pgx.Conn) error) (lost bool) {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	dial := cfg.DialFunc
	c := &lostConn{cut: cut, left: -1, lost: make(chan struct{}), over: make(chan struct{})}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if c.Conn != nil {
			return nil, net.ErrClosed // a frozen client cancels nothing
		}
		c.Conn, err = dial(ctx, network, addr)
		return c, err
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.left = words
	c.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- act(t.Context(), conn)
	}()
	t.Cleanup(func() {
		close(c.over)
		_ = c.Conn.Close()
		for range done { // whatever it says, it ends
		}
		_ = conn.Close(context.WithoutCancel(t.Context()))
		<-conn.PgConn().CleanupDone()
	})
	select {
	case <-c.lost:
		return true
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
		return false
	}
}

// Wherever a migrator is killed, frozen or lost to the network, appends go on, and the next migrator does not wait for it.
func TestAMigratorThatIsLostAnywhereLeavesTheWayFree(t *testing.T) {
	t.Parallel()
	up := func(ctx context.Context, conn *pgx.Conn) error {
		_, _, err := migrations.Up(ctx, conn, migrations.DefaultSchema)
		return err
	}
	for _, tc := range []struct {
		name string
		from int32 // -1: nothing is there
		act  func(context.Context, *pgx.Conn) error
	}{
		{"up into an empty database", -1, up},
		{"up from version 1", 1, up},
		{"down", 2, func(ctx context.Context, conn *pgx.Conn) error {
			return migrations.To(ctx, conn, migrations.DefaultSchema, 1)
		}},
	} {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cut %v", tc.name, cut), func(t *testing.T) {
				t.Parallel()
				for words := 1; loseOnce(t, tc.from, words, cut, tc.act); words++ {
				}
			})
		}
	}
}

func loseOnce(t *testing.T, from int32, words int, cut bool, act func(context.Context, *pgx.Conn) error) (lost bool) {
	t.Helper()
	t.Run(fmt.Sprintf("after %d words", words), func(t *testing.T) {
		db := testdb.NewEmpty(t)
		conn := db.Connect()
		exec(t, conn, "set statement_timeout = '20s'")
		if from >= 0 {
			up(t, conn, migrations.DefaultSchema)
			if err := migrations.To(t.Context(), conn, migrations.DefaultSchema, from); err != nil {
				t.Fatal(err)
			}
			exec(t, conn, "select keyline.append('r', 'a.b', '{}')")
		}
		lost = loseMigrator(t, db, words, cut, act)
		if from >= 0 {
			exec(t, conn, "select keyline.append('r', 'a.b', '{}')")
		}
		// What a lost migrator has sent may be carried out yet.
		testdb.Eventually(t, func() bool {
			up(t, conn, migrations.DefaultSchema)
			s, err := migrations.Read(t.Context(), conn, migrations.DefaultSchema)
			if err != nil || s.Fit() != nil {
				return false
			}
			there, err := testdb.DumpSchema(t.Context(), conn, migrations.DefaultSchema)
			return err == nil && there == golden(t) // a function that is dropped beneath the dump has no text
		}, "the next migrator to bring the schema up")
		exec(t, conn, "select keyline.append('r', 'a.b', '{}')")
	})
	return lost
}
