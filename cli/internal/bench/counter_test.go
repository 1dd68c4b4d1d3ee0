package bench

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/testdb"
)

func TestCounterCountsWhatTheServerWould(t *testing.T) {
	cfg, err := pgx.ParseConfig(testdb.NewEmpty(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	sent := &counter{}
	cfg.Tracer = sent
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	batch := func(statements ...string) func() error {
		return func() error {
			var b pgx.Batch
			for _, s := range statements {
				b.Queue(s)
			}
			return conn.SendBatch(t.Context(), &b).Close()
		}
	}
	for name, c := range map[string]struct {
		send func() error
		want costs
	}{
		"a statement by itself": {func() error { _, err := conn.Exec(t.Context(), "select 1"); return err }, costs{statements: 1, commits: 1}},
		"a transaction": {func() error {
			return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "select 1")
				return err
			})
		}, costs{statements: 1, commits: 1}},
		"a transaction in one round trip": {batch("begin isolation level read committed", "select 1", "select 2", "commit"), costs{statements: 2, commits: 1}},
		"a transaction in two": {func() error {
			if err := batch("begin", "select 1")(); err != nil {
				return err
			}
			return batch("select 2", "commit")()
		}, costs{statements: 2, commits: 1}},
		"a transaction that is given up": {func() error {
			if err := batch("begin", "savepoint s", "rollback to savepoint s")(); err != nil {
				return err
			}
			_, err := conn.Exec(t.Context(), "rollback")
			return err
		}, costs{statements: 2}},
	} {
		sent.restart()
		if err := c.send(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := sent.now(); got != c.want {
			t.Errorf("%s: counted %+v, want %+v", name, got, c.want)
		}
	}
}
