package keyline_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// TestAWorkerListensAsItsPoolConnects: what a program sets on the pool's configuration after it was read, or sets before
// each connection (passwords that rotate), holds for LISTEN and for the session that sleeps too.
func TestAWorkerListensAsItsPoolConnects(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	right := db.Pool().Config().ConnConfig
	for name, change := range map[string]func(*pgxpool.Config){
		"set afterwards": func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Database = right.User, right.Database },
		"set before each connection": func(c *pgxpool.Config) {
			c.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
				conn.User, conn.Database = right.User, right.Database
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := must(pgxpool.ParseConfig(strings.Replace(db.URL, db.Name, "no_such_database", 1)))(t)
			wrong.ConnConfig.User = "nobody_at_all"
			change(wrong)
			pool := must(pgxpool.NewWithConfig(t.Context(), wrong))(t)
			defer pool.Close()
			w := must(keyline.NewWorker(pool, keyline.Config{Name: name}, recording(newSeen(), "it")))(t)
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			testdb.Eventually(t, func() bool {
				for _, c := range w.Readiness().Checks {
					if c.Name == "listening" {
						return c.Status == "ok"
					}
				}
				return false
			}, "notifications arrive")
			testdb.Eventually(t, func() bool {
				return scalar[bool](t, db.Pool(), `select exists (select from pg_locks l join pg_stat_activity a using (pid)
					where l.locktype = 'advisory' and l.granted and a.datname = current_database() and a.application_name like 'keyline %')`)
			}, "it sleeps by a lock")
			if _, err := w.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
