package traffic_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/examples/crm/traffic"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Promise (P2): clients whose connections break ask again under their idempotency
// keys, and nothing is done twice or left out, whatever had been committed by then.
func TestTrafficCountsExactlyWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	pool := a.NewPool(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "traffic" })
	seed := clock.RandomSeed()
	t.Logf("seed %d", seed)
	type result struct {
		report traffic.Report
		err    error
	}
	done := make(chan result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		report, err := traffic.Run(ctx, crm.NewService(pool, a.Client), traffic.Config{Clients: 6, Activities: 10, Seed: seed})
		done <- result{report, err}
	}()
	events := func() int64 { return crmtest.Get[int64](a, "select count(*) from keyline.events") }
	for range 12 {
		enough := events() + 15
		testdb.Eventually(t, func() bool {
			select {
			case r := <-done:
				t.Fatalf("traffic ended: %v", r.err)
			default:
			}
			return events() >= enough
		}, "traffic to go on")
		a.Exec("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'traffic'")
	}
	cancel()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if r.report.Repeated == 0 {
		t.Error("no request was repeated: no connection broke in one")
	}
	if n := events(); n != r.report.Appended {
		t.Errorf("counted %d of %d events, %d requests repeated", r.report.Appended, n, r.report.Repeated)
	}
	if err := r.report.Verify(t.Context(), a.Pool); err != nil {
		t.Error(err)
	}
	if n := crmtest.Get[int64](a, "select count(*) from crm.requests where answer is null"); n != 0 {
		t.Errorf("%d requests without an answer", n)
	}
}
