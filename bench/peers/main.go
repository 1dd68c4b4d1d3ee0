package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// settings are a run's, the same for every side.
type settings struct {
	Records  int           `json:"records"`
	Runs     int           `json:"runs"`
	Clients  int           `json:"clients"`
	Duration time.Duration `json:"duration_ns"`
	Rate     int           `json:"rate_per_s"`
	Durable  bool          `json:"durable"`
	MaxConns int32         `json:"max_conns"`
}

// outcome is what one run of one side came to.
type outcome struct {
	// Value is in the scenario's unit: events/s, tx/s, or the median in ms.
	Value           float64 `json:"value"`
	P99             float64 `json:"p99_ms,omitempty"`
	Max             float64 `json:"max_ms,omitempty"`
	OrderViolations int64   `json:"order_violations"`
	Lost            int64   `json:"lost"`
	Duplicates      int64   `json:"duplicates"`
}

// side is one contestant in one scenario.
type side struct {
	peer, version, how string
	run                runner
}

// runner runs one side once.
type runner = func(ctx context.Context, b *bench) (outcome, error)

// scenario is one kind of work. Ratios are the first side's (Keyline's) to each
// other's; where lower is better, the other way round, so that above 1 is always Keyline ahead.
type scenario struct {
	name, unit string
	lower      bool
	goals      map[string]float64 // by peer and how
	sides      []side
}

type result struct {
	Scenario       string    `json:"scenario"`
	Unit           string    `json:"unit"`
	Peer           string    `json:"peer"`
	Version        string    `json:"version"`
	How            string    `json:"how"`
	Settings       settings  `json:"settings"`
	Runs           []outcome `json:"runs"`
	Median         float64   `json:"median"`
	RatioToKeyline float64   `json:"ratio_to_keyline"`
	Goal           float64   `json:"goal,omitempty"`
	Reached        *bool     `json:"reached,omitempty"`
	Error          string    `json:"error,omitempty"`
}

func main() {
	var s settings
	out := flag.String("out", "", "write the results here as JSON")
	only := flag.String("scenarios", "drain-1,drain-4,append,append-busy,latency", "which to run, comma-separated")
	flag.IntVar(&s.Records, "records", 200_000, "records of a drain, one event each")
	flag.IntVar(&s.Runs, "runs", 3, "runs of each side, taking turns")
	flag.IntVar(&s.Clients, "clients", 32, "appending clients")
	flag.DurationVar(&s.Duration, "duration", 8*time.Second, "length of an append or latency run")
	flag.IntVar(&s.Rate, "rate", 500, "events per second of the latency scenario")
	flag.BoolVar(&s.Durable, "durable", false, "fsync and synchronous commits on")
	flag.Parse()
	s.MaxConns = 40
	slog.SetLogLoggerLevel(slog.LevelError)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	results, err := run(ctx, s, strings.Split(*only, ","))
	if err == nil && *out != "" {
		err = write(*out, results)
	}
	print(results)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings, only []string) ([]result, error) {
	server, err := pgdev.Start(ctx, pgdev.Options{Durable: s.Durable})
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Stop() }()
	b := &bench{settings: s, server: server}
	var results []result
	for _, sc := range scenarios() {
		if !slices.Contains(only, sc.name) {
			continue
		}
		rows := make([]result, len(sc.sides))
		for i, side := range sc.sides {
			rows[i] = result{Scenario: sc.name, Unit: sc.unit, Peer: side.peer, Version: side.version, How: side.how, Settings: s}
		}
		for n := range s.Runs {
			for i, side := range sc.sides {
				o, err := side.run(ctx, b)
				if err != nil {
					rows[i].Error = err.Error()
				} else {
					rows[i].Runs = append(rows[i].Runs, o)
				}
				fmt.Fprintf(os.Stderr, "%s run %d: %s %s: %.1f %s %v\n", sc.name, n+1, side.peer, side.how, o.Value, sc.unit, err)
				if ctx.Err() != nil {
					return append(results, rows...), context.Cause(ctx)
				}
			}
		}
		results = append(results, compare(sc, rows)...)
	}
	return results, nil
}

// compare fills in medians, ratios and goals.
func compare(sc scenario, rows []result) []result {
	for i := range rows {
		values := make([]float64, len(rows[i].Runs))
		for k, o := range rows[i].Runs {
			values[k] = o.Value
		}
		slices.Sort(values)
		if len(values) > 0 {
			rows[i].Median = values[len(values)/2]
		}
	}
	for i := range rows {
		if rows[i].Median == 0 || rows[0].Median == 0 {
			continue
		}
		rows[i].RatioToKeyline = rows[0].Median / rows[i].Median
		if sc.lower {
			rows[i].RatioToKeyline = rows[i].Median / rows[0].Median
		}
		if goal, ok := sc.goals[rows[i].Peer+" "+rows[i].How]; ok {
			reached := rows[i].RatioToKeyline >= goal
			rows[i].Goal, rows[i].Reached = goal, &reached
		}
	}
	return rows
}

func write(path string, results []result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func print(results []result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tpeer\thow\tmedian\tunit\tKeyline is\tgoal\tlost\tduplicates\tout of order")
	for _, r := range results {
		var lost, twice, order int64
		for _, o := range r.Runs {
			lost, twice, order = lost+o.Lost, twice+o.Duplicates, order+o.OrderViolations
		}
		goal := ""
		if r.Reached != nil {
			goal = fmt.Sprintf("%.1f× %v", r.Goal, *r.Reached)
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%.1f\t%s\t%.2f×\t%s\t%d\t%d\t%d %s\n", r.Scenario, r.Peer, r.Version, r.How, r.Median, r.Unit,
			r.RatioToKeyline, goal, lost, twice, order, r.Error)
	}
	_ = w.Flush()
}
