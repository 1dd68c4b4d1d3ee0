package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

// topSettings are what one call of top is about.
type topSettings struct {
	interval time.Duration
	once     bool
	records  int
}

// minInterval keeps top from being a load of its own.
const minInterval = 100 * time.Millisecond

func (a *app) topCommand() *cobra.Command {
	var s topSettings
	cmd := &cobra.Command{
		Use: "top", Short: "Consumers, workers and the stuckest records, as they change", Args: arguments(cobra.NoArgs),
		Long: "Shows, again and again, how each consumer fares and how fast, what workers hold, and the records that have waited\n" +
			"longest; q or Ctrl-C ends it. Where it does not write to a terminal it writes frame after frame; with --json one\n" +
			"object per line. It is cheap at any size. Rates are known from the second frame on.",
		Example: "  keyline top\n  keyline top --once\n  keyline top --json --interval 10s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case s.interval < minInterval:
				return usagef(cmd, "--interval %s: must be at least %s", s.interval, minInterval)
			case s.records < 0 || s.records > mostStuck:
				return usagef(cmd, "--records %d: must be 0 to %d", s.records, mostStuck)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error { return a.top(ctx, o, s) })
		},
	}
	fs := cmd.Flags()
	fs.DurationVar(&s.interval, "interval", 2*time.Second, "time between two frames")
	fs.BoolVar(&s.once, "once", false, "show one frame, and end")
	fs.IntVar(&s.records, "records", 10, "how many of the stuckest records")
	return cmd
}

const mostStuck = 100

// topFrame is one look at an installation.
type topFrame struct {
	At        time.Time             `json:"at"`
	Consumers []topConsumer         `json:"consumers"`
	Workers   []keyline.WorkerView  `json:"workers"`
	Stuck     []keyline.StuckRecord `json:"stuck"`
}

type topConsumer struct {
	keyline.ConsumerHealth
	// CompletedPerSecond and FailedPerSecond are since the frame before; null in the first one.
	CompletedPerSecond *float64 `json:"completed_per_second"`
	FailedPerSecond    *float64 `json:"failed_per_second"`
	// LagSeconds is how old the oldest pending event is; 0: none is pending.
	LagSeconds float64 `json:"lag_seconds"`
}

// look reads a frame. before is the one before, nil: none.
func (a *app) look(ctx context.Context, o keyline.Operator, records int, before *topFrame) (f topFrame, err error) {
	list, err := o.ConsumerHealth(ctx)
	if err != nil {
		return f, err
	}
	f.At = a.clock.Now()
	for _, h := range list {
		c := topConsumer{ConsumerHealth: h}
		if h.OldestAt != nil {
			c.LagSeconds = max(f.At.Sub(*h.OldestAt), 0).Seconds()
		}
		c.since(before, f.At)
		f.Consumers = append(f.Consumers, c)
	}
	if f.Workers, err = o.Workers(ctx); err != nil || records == 0 {
		return f, err
	}
	f.Stuck, err = o.Stuck(ctx, records)
	return f, err
}

// since computes rates against the frame before.
func (c *topConsumer) since(before *topFrame, now time.Time) {
	if before == nil {
		return
	}
	seconds := now.Sub(before.At).Seconds()
	i := slices.IndexFunc(before.Consumers, func(b topConsumer) bool { return b.Name == c.Name })
	if i < 0 || seconds <= 0 {
		return
	}
	rate := func(now, then int64) *float64 { r := float64(max(now-then, 0)) / seconds; return &r }
	c.CompletedPerSecond = rate(c.Completed, before.Consumers[i].Completed)
	c.FailedPerSecond = rate(c.Failed, before.Consumers[i].Failed)
}

// top shows frames until ctx ends or somebody quits.
func (a *app) top(ctx context.Context, o keyline.Operator, s topSettings) error {
	screen := a.screen(s)
	defer screen.close()
	var before *topFrame
	tick := a.clock.NewTicker(s.interval)
	defer tick.Stop()
	for {
		f, err := a.look(ctx, o, s.records, before)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (before == nil || !screen.live):
			return err
		case err != nil:
			// A database that is away for a while is what one watches for.
			screen.note(err)
		default:
			if err := a.frame(screen, f); err != nil {
				return err
			}
			before = &f
		}
		if s.once {
			return nil
		}
		select {
		case <-tick.C():
		case <-screen.quit:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (a *app) frame(screen *screen, f topFrame) error {
	if a.global.json {
		f.Consumers, f.Workers, f.Stuck = notNil(f.Consumers), notNil(f.Workers), notNil(f.Stuck)
		return a.printJSON(f)
	}
	var b bytes.Buffer
	if err := drawTop(&b, f); err != nil {
		return err
	}
	return screen.show(b.String())
}

// drawTop writes a frame as text.
func drawTop(w io.Writer, f topFrame) error {
	var health []keyline.ConsumerHealth
	var consumers, workers, stuck [][]string
	for _, c := range f.Consumers {
		health = append(health, c.ConsumerHealth)
		consumers = append(consumers, []string{
			c.Name, c.Status, count(c.Workers), atLeast(c.Pending, c.PendingExact, c.CountedAt), age(f.At, c.OldestAt), rateOf(c.CompletedPerSecond),
			rateOf(c.FailedPerSecond), count(c.Processing), count(c.Retrying), count(c.Parked), count(c.Dead),
		})
	}
	for _, v := range f.Workers {
		flying, open := flight(v.State)
		workers = append(workers, []string{nameOf(v), v.Host, statusOf(v), count(v.Claims), count(flying), age(f.At, &v.BeatAt), list(open)})
	}
	for _, r := range f.Stuck {
		stuck = append(stuck, []string{r.Record + ofTenant(r.Tenant), r.Reason, age(f.At, r.Since), orDash(r.Consumer), attempts(r.Attempt), orDash(r.ErrorCode),
			when(r.NextAttemptAt), holder(r)})
	}
	if _, err := fmt.Fprintf(w, "keyline top, %s%s\n\n", f.At.UTC().Format(time.RFC3339), cmp.Or(prefixed(" ! ", staleness(f.At, health)), "")); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	for _, part := range []struct {
		of      string
		headers []string
		rows    [][]string
	}{
		{"consumers", []string{"CONSUMER", "STATUS", "WORKERS", "PENDING", "OLDEST", "DONE/S", "FAILED/S", "RUNNING", "BACKOFF", "PARKED", "DEAD"}, consumers},
		{"workers", []string{"WORKER", "HOST", "STATUS", "CLAIMS", "RUNNING", "BEAT", "OPEN BREAKERS"}, workers},
		{"records that wait", []string{"RECORD", "REASON", "FOR", "CONSUMER", "RUNS", "ERROR", "NEXT", "HELD BY"}, stuck},
	} {
		if len(part.rows) == 0 {
			if _, err := fmt.Fprintf(w, "no %s\n\n", part.of); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
			continue
		}
		if err := writeTable(w, part.headers, part.rows); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	return nil
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func rateOf(r *float64) string {
	switch {
	case r == nil:
		return "-"
	case *r < 10:
		return fmt.Sprintf("%.1f", *r)
	}
	return fmt.Sprintf("%.0f", *r)
}

func attempts(n int) string {
	if n == 0 {
		return "-"
	}
	return count(int64(n))
}

func holder(r keyline.StuckRecord) string {
	if r.WorkerID == nil {
		return "-"
	}
	return r.Worker + "#" + count(*r.WorkerID)
}

// flight reads from what a worker publishes how many handlers run, and the consumers whose breaker is not closed.
func flight(state json.RawMessage) (running int64, open []string) {
	var s struct {
		Consumers []struct {
			Name     string `json:"name"`
			Breaker  string `json:"breaker"`
			InFlight int64  `json:"in_flight"`
		} `json:"consumers"`
	}
	if json.Unmarshal(state, &s) != nil {
		return 0, nil // another version's: it has its own words
	}
	for _, c := range s.Consumers {
		running += c.InFlight
		if c.Breaker != "" && c.Breaker != "closed" {
			open = append(open, c.Name)
		}
	}
	return running, open
}
