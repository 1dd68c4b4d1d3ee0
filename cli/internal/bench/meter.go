package bench

import (
	"context"
	_ "embed" // the statements
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
)

// What the benchmark reads. The schema has its default name.
var (
	//go:embed sql/settings.sql
	sqlSettings string
	//go:embed sql/costs.sql
	sqlCosts string
	//go:embed sql/statements.sql
	sqlStatements string
	//go:embed sql/sessions.sql
	sqlSessions string
	//go:embed sql/claims.sql
	sqlClaims string
	//go:embed sql/release.sql
	sqlRelease string
	//go:embed sql/settled.sql
	sqlSettled string
	//go:embed sql/held.sql
	sqlHeld string
	//go:embed sql/due.sql
	sqlDue string
)

// settledPoll is how often the meter looks whether the last records have settled.
const settledPoll = 5 * time.Millisecond

// costs are what draining has cost the server.
type costs struct{ statements, commits, wal int64 }

func (c *costs) add(o costs) {
	c.statements += o.statements
	c.commits += o.commits
	c.wal += o.wal
}

// meter reads what a turn costs, on a connection of its own.
type meter struct {
	conn       *pgx.Conn
	statements bool
	before     costs
	own        int64 // transactions of the meter itself since before
}

func (s *stage) meter(ctx context.Context, url string) (*meter, error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	m := &meter{conn: conn, statements: s.statements}
	if m.statements {
		if _, err := conn.Exec(ctx, "create extension pg_stat_statements"); err != nil {
			m.close(ctx)
			return nil, fmt.Errorf("count statements: %w", err)
		}
	}
	if m.before, err = m.now(ctx); err != nil {
		m.close(ctx)
		return nil, err
	}
	m.own = 0
	return m, nil
}

func (m *meter) close(ctx context.Context) { _ = m.conn.Close(context.WithoutCancel(ctx)) }

// settled says whether no record has work.
func (m *meter) settled(ctx context.Context) (ok bool, err error) {
	m.own++
	err = m.conn.QueryRow(ctx, sqlSettled).Scan(&ok)
	return ok, err
}

// read returns what was spent since the meter was made. Sessions report their
// commits when they end, so it waits until the worker's have.
func (m *meter) read(ctx context.Context, c clock.Clock) (costs, error) {
	limited, cancel := context.WithTimeout(ctx, idleTimeout)
	defer cancel()
	for others := int64(1); others > 0; {
		m.own++
		if err := m.conn.QueryRow(limited, sqlSessions).Scan(&others); err != nil {
			return costs{}, fmt.Errorf("wait for the worker's sessions to end: %w", err)
		}
		if others > 0 {
			if err := clock.Sleep(limited, c, settledPoll); err != nil {
				return costs{}, fmt.Errorf("wait for the worker's sessions to end: %w", err)
			}
		}
	}
	// What this session has done is not in the figures before a report of its
	// own, which comes at the end of a transaction, but at most once a second;
	// so its own transactions are left in. They are few.
	after, err := m.now(ctx)
	return costs{after.statements - m.before.statements - m.own, after.commits - m.before.commits, after.wal - m.before.wal}, err
}

func (m *meter) now(ctx context.Context) (c costs, err error) {
	m.own++
	if err := m.conn.QueryRow(ctx, sqlCosts).Scan(&c.commits, &c.wal); err != nil {
		return c, fmt.Errorf("read costs: %w", err)
	}
	if m.statements {
		m.own++
		if err := m.conn.QueryRow(ctx, sqlStatements).Scan(&c.statements); err != nil {
			return c, fmt.Errorf("read the count of statements: %w", err)
		}
	}
	return c, nil
}
