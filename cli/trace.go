package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/cli/internal/waterfall"
	"github.com/keylinehq/keyline/internal/jaeger"
	"github.com/keylinehq/keyline/keylinetype"
)

// envJaeger names the Jaeger that trace asks where no flag does.
const envJaeger = envPrefix + "JAEGER_URL"

// How trace looks for the roots that are linked to an event.
const (
	traceSearch  = 200              // traces per search, where nobody says
	mostTraces   = 10_000           // that one may ask for
	traceSlack   = time.Minute      // by which the clocks of machines may differ
	traceTimeout = 30 * time.Second // of one question
	barWidth     = 24
)

func (a *app) traceCommand() *cobra.Command {
	var (
		url   string
		limit int
	)
	cmd := &cobra.Command{
		Use: "trace EVENT", Short: "The waterfall of one event: its append, each run of each consumer, what became of them", Args: arguments(cobra.ExactArgs(1)),
		Long: "Shows how one event went, by its id. From the database: when it was appended and in which trace, each run that\n" +
			"failed, dead letters, skips, what operators did, and where each consumer stands.\n\n" +
			"With --jaeger (or " + envJaeger + "), such as http://127.0.0.1:16686, also the spans: the trace of the append, with\n" +
			"the first runs, and retries and replays, which are traces of their own, linked to it. Jaeger finds those by name\n" +
			"and time; --search says how many traces each search looks at. docs/tracing.md explains the spans.",
		Example: "  keyline trace 0197c2a0-5b1e-7c9a-8f3e-2d1c0b9a8f7e\n  keyline trace 0197c2a0-5b1e-7c9a-8f3e-2d1c0b9a8f7e --jaeger http://127.0.0.1:16686 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[0])
			if err != nil {
				return usagef(cmd, "%q is no id of an event: %w", args[0], err)
			}
			if limit < 1 || limit > mostTraces {
				return usagef(cmd, "--search %d: must be 1 to %d", limit, mostTraces)
			}
			if url == "" {
				url = os.Getenv(envJaeger)
			}
			var ask *jaeger.Client
			if url != "" {
				if ask, err = jaeger.New(url, &http.Client{Timeout: traceTimeout}); err != nil {
					return usagef(cmd, "--jaeger %w", err)
				}
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				event, err := o.TraceEvent(ctx, id)
				if err != nil {
					return err
				}
				return a.showTrace(ctx, event, ask, limit)
			})
		},
	}
	cmd.Flags().StringVar(&url, "jaeger", "", "Jaeger's query address (or "+envJaeger+"); none: the database alone")
	cmd.Flags().IntVar(&limit, "search", traceSearch, "the most traces that one search for retries looks at")
	return cmd
}

// traceReport is the output of trace.
type traceReport struct {
	keyline.EventTrace
	// Traces are null where no Jaeger was asked.
	Traces []tracedTrace `json:"traces"`
	// Capped is true where a search ended at its limit, so that linked traces may be missing.
	Capped bool `json:"capped"`
}

type tracedTrace struct {
	TraceID string       `json:"trace_id"`
	Linked  bool         `json:"linked"`
	Spans   []tracedSpan `json:"spans"`
}

type tracedSpan struct {
	SpanID     string            `json:"span_id"`
	ParentID   string            `json:"parent_id"`
	Depth      int               `json:"depth"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	Service    string            `json:"service"`
	StartedAt  time.Time         `json:"started_at"`
	DurationMS float64           `json:"duration_ms"`
	Error      bool              `json:"error"`
	Status     string            `json:"status"`
	Attributes map[string]string `json:"attributes"`
	Links      []jaeger.Link     `json:"links"`
}

func (a *app) showTrace(ctx context.Context, event keyline.EventTrace, ask *jaeger.Client, limit int) error {
	var (
		traces []waterfall.Trace
		r      = traceReport{EventTrace: event}
	)
	parent, traced := waterfall.ParseTraceparent(event.Traceparent)
	if ask != nil && traced {
		var err error
		if traces, r.Capped, err = waterfall.Gather(ctx, ask, a.traceQuery(event, parent, limit)); err != nil {
			return fmt.Errorf("%w: %w", keyline.ErrUnavailable, err)
		}
	}
	if a.global.json {
		if ask != nil {
			r.Traces = reportTraces(traces)
		}
		return a.printJSON(r)
	}
	if err := a.printEventTrace(event); err != nil {
		return err
	}
	switch {
	case ask == nil:
		return nil
	case !traced:
		return a.print("The event was appended outside of any trace: Jaeger knows nothing of it.")
	case len(traces) == 0:
		return a.print("Jaeger has no trace of it: %s was not sampled, has not arrived yet, or has been dropped since.", parent.TraceID)
	}
	for _, t := range traces {
		if err := a.printWaterfall(t, event.CreatedAt); err != nil {
			return err
		}
	}
	if r.Capped {
		a.talk("There may be more linked traces: --search %d", min(limit*10, mostTraces))
	}
	return nil
}

// traceQuery says where the linked roots are looked for: for each consumer that the event concerned, and beside the
// whole time since the append around each failure, where a retry is found however much has happened since.
func (a *app) traceQuery(event keyline.EventTrace, parent waterfall.Parent, limit int) waterfall.Query {
	q := waterfall.Query{
		Event: event.ID.String(), Record: event.Record, Appended: parent, Limit: limit,
		From: event.CreatedAt.Add(-traceSlack), Until: a.clock.Now().Add(traceSlack),
	}
	for _, c := range event.Consumers {
		if c.State == "ignored" && len(c.Failures) == 0 && c.DeadLetter == nil {
			continue
		}
		of := waterfall.Consumer{Name: c.Consumer}
		for _, f := range c.Failures {
			of.Ends = append(of.Ends, f.At)
		}
		q.Consumers = append(q.Consumers, of)
	}
	return q
}

func reportTraces(traces []waterfall.Trace) []tracedTrace {
	list := make([]tracedTrace, 0, len(traces))
	for _, t := range traces {
		out := tracedTrace{TraceID: t.ID, Linked: t.Linked}
		for _, s := range t.Spans {
			out.Spans = append(out.Spans, tracedSpan{
				SpanID: s.SpanID, ParentID: s.ParentID, Depth: s.Depth, Name: s.Name, Kind: s.Kind, Service: s.Service, StartedAt: s.Start.UTC(),
				DurationMS: milliseconds(s.End.Sub(s.Start)), Error: s.Error, Status: s.Status, Attributes: s.Attributes, Links: notNil(s.Links),
			})
		}
		list = append(list, out)
	}
	return list
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// printEventTrace prints what the database knows, in the order in which it happened.
func (a *app) printEventTrace(v keyline.EventTrace) error {
	err := a.print("event %d of %s%s: %s v%d, %s\nappended %s, trace %s\n", v.Seq, line(v.Record), ofTenant(v.Tenant), line(v.Type), v.Version,
		v.State, precise(v.CreatedAt), orDash(v.Traceparent))
	if err != nil {
		return err
	}
	if rows := history(v); len(rows) > 0 {
		if err := a.section("runs that failed", []string{"AFTER", "CONSUMER", "RUN", "WHAT"}, rows); err != nil {
			return err
		}
	}
	var rows [][]string
	for _, c := range v.Consumers {
		worker := "-"
		if c.WorkerID != nil {
			worker = c.Worker + "#" + count(*c.WorkerID)
		}
		rows = append(rows, []string{c.Consumer, c.State, when(c.NextAttemptAt), worker, orDash(c.ErrorCode)})
	}
	return a.section("consumers", []string{"CONSUMER", "STATE", "NEXT", "HELD BY", "ERROR"}, rows)
}

// history is what happened to the event's deliveries, but for successes, of which the database keeps no time.
func history(v keyline.EventTrace) [][]string {
	type line struct {
		at   time.Time
		text []string
	}
	var lines []line
	add := func(at time.Time, consumer string, run int, what string) {
		n := "-"
		if run > 0 {
			n = fmt.Sprint(run)
		}
		lines = append(lines, line{at, []string{after(at.Sub(v.CreatedAt)), consumer, n, what}})
	}
	for _, c := range v.Consumers {
		for _, f := range c.Failures {
			add(f.At, c.Consumer, f.Attempt, strings.TrimSuffix("failed: "+f.ErrorCode+": "+f.ErrorMessage, ": "))
		}
		for _, s := range c.Skips {
			add(s.At, c.Consumer, s.Attempt, strings.TrimSuffix("skipped: "+s.Code+": "+s.Reason, ": "))
		}
		for _, m := range c.Acts {
			add(m.At, c.Consumer, 0, fmt.Sprintf("%s asked for %s%s%s", m.Actor, m.Kind, because(m.Reason), strings.TrimSuffix(": "+m.Outcome, ": ")))
		}
		if d := c.DeadLetter; d != nil {
			add(d.FailedAt, c.Consumer, 0, fmt.Sprintf("dead letter %d (%s), now %s", d.ID, d.Reason, d.Status))
			if d.ResolvedAt != nil {
				add(*d.ResolvedAt, c.Consumer, 0, fmt.Sprintf("dead letter %d: %s%s", d.ID, d.Status, because(d.Resolution)))
			}
		}
	}
	slices.SortStableFunc(lines, func(x, y line) int { return x.at.Compare(y.at) })
	rows := make([][]string, len(lines))
	for i, l := range lines {
		rows[i] = l.text
	}
	return rows
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// precise is a time to the millisecond, to set beside spans.
func precise(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// after is a duration since the append.
func after(d time.Duration) string {
	switch {
	case d.Abs() < time.Second:
		return fmt.Sprintf("%.1f ms", milliseconds(d))
	case d.Abs() < time.Hour:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func (a *app) printWaterfall(t waterfall.Trace, appended time.Time) error {
	what := "trace of the append"
	if t.Linked {
		what = "linked trace"
	}
	if err := a.print("%s %s, %s", what, t.ID, after(t.Spans[0].Start.Sub(appended))); err != nil {
		return err
	}
	var rows [][]string
	for _, l := range t.Spans {
		rows = append(rows, []string{
			after(l.Start.Sub(t.Spans[0].Start)), after(l.End.Sub(l.Start)), waterfall.Bar(t, l, barWidth),
			strings.Repeat("  ", l.Depth) + l.Name, l.Service, spanNotes(l),
		})
	}
	return a.section("spans", []string{"AT", "TOOK", "", "SPAN", "SERVICE", ""}, rows)
}

// spanNotes are what a reader wants to know of a span first.
func spanNotes(l waterfall.Line) string {
	var notes []string
	if n := l.Attributes[keylinetype.AttrAttempt]; n != "" {
		notes = append(notes, "run "+n, l.Attributes[keylinetype.AttrOutcome])
		if mode := l.Attributes[keylinetype.AttrMode]; mode != string(keyline.Live) {
			notes = append(notes, mode)
		}
	}
	if l.Error {
		notes = append(notes, "ERROR", l.Attributes["error.type"], l.Status)
	}
	return strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), " ")
}
