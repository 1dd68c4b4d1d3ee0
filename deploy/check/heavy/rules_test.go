package heavy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	promql "github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// lags are how long events took, so many per minute within each bound.
func lags(within1, within10, all string) string {
	const series = `keyline_delivery_lag_seconds_bucket{messaging_consumer_group_name="c",le="`
	return series + "1\"} 0+" + within1 + "x70\n" + series + "10\"} 0+" + within10 + "x70\n" + series + "30\"} 0+" + all + "x70\n" +
		series + "+Inf\"} 0+" + all + "x70\n" + `keyline_delivery_lag_seconds_count{messaging_consumer_group_name="c"} 0+` + all + "x70"
}

func outcomes(failed string) string {
	const series = `messaging_client_consumed_messages_total{messaging_consumer_group_name="c",keyline_delivery_outcome="`
	return series + "completed\"} 0+70x70\n" + series + "retry\"} 0+" + failed + "x70"
}

// An alert that never fires is none: each has series, a minute apart, that it fires at, and such that it does not.
func TestAlertsFireWhereTheyShould(t *testing.T) {
	for alert, series := range map[string]struct{ fires, quiet string }{
		"KeylineNoWorker":         {"another 1x70", "keyline_worker_records 0x70"},
		"KeylineBacklogOld":       {`keyline_mailbox_oldest_age_seconds{instance="a"} 31x70`, `keyline_mailbox_oldest_age_seconds{instance="a"} 29x70`},
		"KeylineDeliveriesLate":   {lags("90", "98", "100"), lags("90", "100", "100")},
		"KeylineObjectiveBurns":   {lags("80", "100", "100"), lags("90", "100", "100")},
		"KeylineConsumerFailing":  {outcomes("30"), outcomes("10")},
		"KeylineBreakerOpen":      {`keyline_breaker_state_ratio{messaging_consumer_group_name="c"} 1x70`, `keyline_breaker_state_ratio{messaging_consumer_group_name="c"} 0.5x70`},
		"KeylineDeadLetters":      {"keyline_dead_letters_open 1x70", "keyline_dead_letters_open 0x70"},
		"KeylineConsumerUnhosted": {`keyline_consumer_unhosted{instance="a",messaging_consumer_group_name="c"} 1x70`, `keyline_consumer_unhosted{instance="a",messaging_consumer_group_name="c"} 0x70`},
		"KeylineRecordsBlocked":   {"keyline_records_blocked 1x70", "keyline_records_blocked 0x70"},
		"KeylineWorkersLost":      {"keyline_claims_recovered_total 0x55 4x15", "keyline_claims_recovered_total 4x70"},
		"KeylineClaimsFenced":     {"keyline_flushes_fenced_total 0x55 4x15", "keyline_flushes_fenced_total 4x70"},
	} {
		rule, ok := rules(t)[alert]
		if !ok {
			t.Errorf("there is no %s", alert)
			continue
		}
		if n := matches(t, rule.Expr, series.fires); n != 1 {
			t.Errorf("%s: %d at\n%s", alert, n, series.fires)
		}
		if n := matches(t, rule.Expr, series.quiet); n != 0 {
			t.Errorf("%s: fires at\n%s", alert, series.quiet)
		}
	}
	if n := len(rules(t)); n != 11 {
		t.Errorf("%d rules, and series for 11", n)
	}
	// A few events say nothing, and Prometheus 3 writes bounds otherwise.
	objective := rules(t)["KeylineObjectiveBurns"].Expr
	if n := matches(t, objective, lags("0", "1", "1")); n != 0 {
		t.Error("70 events are an objective")
	}
	if n := matches(t, objective, strings.ReplaceAll(lags("80", "100", "100"), `le="1"`, `le="1.0"`)); n != 1 {
		t.Error("le=\"1.0\" is unknown")
	}
}

func rules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "prometheus", "rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, promql.NewParser(promql.Options{}), promslog.NewNopLogger())
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	all := map[string]rulefmt.Rule{}
	for _, r := range groups.Groups[0].Rules {
		all[r.Alert] = r
	}
	return all
}

// matches is how many series an expression has an hour after the series began.
func matches(t *testing.T, expr, series string) int {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n  "+strings.ReplaceAll(series, "\n", "\n  "))
	defer storage.Close()
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery)
	query, err := engine.NewInstantQuery(context.Background(), storage, nil, expr, time.Unix(0, 0).Add(61*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	v, err := query.Exec(context.Background()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return len(v)
}
