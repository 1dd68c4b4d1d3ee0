package demo

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"

	"github.com/keylinehq/keyline/examples/crm/recorder"
)

// facts are what the database says when all is over.
type facts struct {
	deadLetters       int64
	open              int64 // deliveries that are not terminal
	completed         int64
	timelineCompleted int64
	timelineLines     int64
	leaseMS           int64
	retried           int64
}

// verdict holds what the handlers have recorded against what was appended, and
// both against what the database says.
func (d *demo) verdict(ctx context.Context, settled bool, stopped error) (Result, error) {
	report, err := recorder.Check(ctx, d.pool)
	if err != nil {
		return Result{}, err
	}
	var f facts
	if err := d.pool.QueryRow(ctx, sqlFacts).Scan(&f.deadLetters, &f.open, &f.completed, &f.timelineCompleted, &f.timelineLines,
		&f.leaseMS, &f.retried); err != nil {
		return Result{}, fmt.Errorf("read the facts: %w", err)
	}
	r := Result{
		Seed: d.Seed, Appended: report.Appended, Expected: report.Expected, Delivered: report.Delivered, Consumers: map[string]Consumer{},
		OrderViolations: report.OrderViolations, Lost: report.Lost, Redelivered: report.Redelivered, DeadLetters: f.deadLetters,
		ClaimsRecovered: d.kill.recovered, LeaseMS: f.leaseMS, P50MS: micros(report.P50), P99MS: micros(report.P99),
	}
	for name, c := range report.Consumers {
		r.Consumers[name] = Consumer{Delivered: c.Delivered, Redelivered: c.Redelivered, Dead: c.Dead}
	}
	r.WorkersStarted, r.WorkersKilled = d.cluster.counts()
	r.Problems = d.problems(&r, report, f)
	if !settled {
		r.Problems = append(r.Problems, fmt.Sprintf("not everything had settled after %s", settleLimit))
	}
	if stopped != nil {
		r.Problems = append(r.Problems, stopped.Error())
	}
	if err := d.traffic.Verify(ctx, d.pool); err != nil {
		r.Problems = append(r.Problems, "the streams are not what was appended: "+err.Error())
	}
	if r.OK = len(r.Problems) == 0; !r.OK {
		r.Problems = append(r.Problems, d.cluster.complaints()...)
	}
	return r, nil
}

// micros rounds milliseconds to what the clocks can tell.
func micros(ms float64) float64 { return math.Round(ms*1000) / 1000 }

// problems are what is not as it must be.
func (d *demo) problems(r *Result, report recorder.Report, f facts) []string {
	var list []string
	must := func(ok bool, format string, args ...any) {
		if !ok {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	must(r.Appended > 0 && r.Appended == d.traffic.Appended, "%d events are in the streams, the application appended %d", r.Appended, d.traffic.Appended)
	must(r.Lost == 0, "%d deliveries were lost", r.Lost)
	must(r.OrderViolations == 0, "%d deliveries came out of order", r.OrderViolations)
	must(report.Unexpected == 0, "%d deliveries went to consumers that they did not concern", report.Unexpected)
	must(r.Delivered+report.Dead == r.Expected, "%d deliveries and %d dead letters are not the %d expected", r.Delivered, report.Dead, r.Expected)
	must(f.completed == r.Delivered, "the database calls %d deliveries completed, the handlers recorded %d", f.completed, r.Delivered)
	must(f.open == 0, "%d deliveries have not ended", f.open)
	must(f.timelineLines == f.timelineCompleted, "the timeline has %d lines for %d deliveries", f.timelineLines, f.timelineCompleted)
	must(r.DeadLetters == poisoned && report.Dead == poisoned, "%d dead letters, %d of them deliveries that never succeeded; %d event was poisoned",
		r.DeadLetters, report.Dead, poisoned)
	must(f.retried >= 1, "no failed delivery was retried and completed")
	must(r.WorkersKilled >= 1, "no worker was killed")
	must(len(d.kill.records) >= 1 && r.ClaimsRecovered == len(d.kill.records), "%d of the %d records of the killed worker were recovered",
		r.ClaimsRecovered, len(d.kill.records))
	return list
}

// verdict tells the end.
func (s *show) verdict(r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-14s %10s %12s %6s\n", "consumer", "delivered", "redelivered", "dead")
	for _, name := range slices.Sorted(maps.Keys(r.Consumers)) {
		c := r.Consumers[name]
		fmt.Fprintf(&b, "%-14s %10d %12d %6d\n", name, c.Delivered, c.Redelivered, c.Dead)
	}
	fmt.Fprintf(&b, "\n%d events appended; %d of %d deliveries done, %d repeated by the kill; %d dead letter\n",
		r.Appended, r.Delivered, r.Expected, r.Redelivered, r.DeadLetters)
	fmt.Fprintf(&b, "%d workers started, %d killed, %d of its records recovered; lease %d ms\n", r.WorkersStarted, r.WorkersKilled, r.ClaimsRecovered, r.LeaseMS)
	fmt.Fprintf(&b, "append to handler: p50 %.1f ms, p99 %.1f ms\n", r.P50MS, r.P99MS)
	fmt.Fprintf(&b, "lost: %d   out of order: %d\n\n", r.Lost, r.OrderViolations)
	if r.OK {
		b.WriteString(good.Render("OK: every event reached every consumer that it concerns, in its record's order."))
	} else {
		b.WriteString(bad.Render("NOT OK") + "\n")
		for _, p := range r.Problems {
			b.WriteString("  - " + p + "\n")
		}
	}
	_, _ = lipgloss.Fprintln(s.w, strings.TrimRight(b.String(), "\n"))
}
