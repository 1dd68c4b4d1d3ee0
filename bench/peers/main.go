package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// settings are a run's, the same for every side, except where a side's work is
// scaled down.
type settings struct {
	Records    int           `json:"records"`
	HotRecords int           `json:"hot_records"`
	HotEvents  int           `json:"hot_events"`
	HotSingle  int           `json:"hot_single"`
	Runs       int           `json:"runs"`
	Clients    int           `json:"clients"`
	Duration   time.Duration `json:"duration_ns"`
	Rate       int           `json:"rate_per_s"` // 0 but in latency scenarios
	Durable    bool          `json:"durable"`
	MaxConns   int32         `json:"max_conns"`
	Costs      bool          `json:"costs"`
	// Pinned has a transaction with an id of its own open while a drain runs.
	Pinned bool `json:"pinned"`
	// Tx has the handlers of a drain write a row in their delivery's transaction.
	Tx bool `json:"tx"`
}

// full is how many records a drain has by itself.
const full = 200_000

func main() {
	s := settings{MaxConns: 40}
	out := flag.String("out", "", "write the results here as JSON, after each scenario")
	only := flag.String("scenarios", "*", "which to run, comma-separated, with globs: drain-*,latency-500")
	peers := flag.String("peers", "*", "which to run beside keyline, comma-separated, with globs")
	flag.IntVar(&s.Records, "records", full, "records of a drain, one event each")
	flag.IntVar(&s.HotRecords, "hot-records", 200, "records of hot-many")
	flag.IntVar(&s.HotEvents, "hot-events", 1000, "events of each record of hot-many")
	flag.IntVar(&s.HotSingle, "hot-single", 10_000, "events of the one record of hot-one")
	flag.IntVar(&s.Runs, "runs", 3, "runs of each side, taking turns")
	flag.IntVar(&s.Clients, "clients", 32, "appending clients")
	flag.DurationVar(&s.Duration, "duration", 8*time.Second, "length of an append or latency run; the latter more than 1s")
	flag.BoolVar(&s.Durable, "durable", false, "fsync and synchronous commits on")
	program := flag.String("keyline", "", "the keyline program, for the scenarios of Keyline alone")
	plots := flag.String("plots", "", "write the courses of those scenarios into this folder, as SVG")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelError)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(scenarios(contestants{node: node(ctx), program: *program, plots: *plots}), strings.Split(*only, ","), strings.Split(*peers, ","))
	if err == nil {
		err = s.fit(chosen)
	}
	if err == nil && *plots != "" {
		err = os.MkdirAll(*plots, 0o750)
	}
	var results []result
	if err == nil {
		results, err = run(ctx, s, chosen, func(sofar []result) error { return write(*out, sofar) })
	}
	if len(results) > 0 {
		print(results)
		err = errors.Join(err, verdict(results))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

// fit refuses what would leave a figure empty, before anything is run.
func (s settings) fit(chosen []scenario) error {
	for _, sc := range chosen {
		if sc.with != nil && sc.with(s).Rate > 0 && s.Duration <= warmUp {
			return fmt.Errorf("%s does not measure its first %v: --duration %v leaves nothing", sc.name, warmUp, s.Duration)
		}
	}
	return nil
}

// choose leaves the scenarios and peers that any of the globs match.
func choose(all []scenario, only, peers []string) ([]scenario, error) {
	matches := func(name string) func(string) bool {
		return func(glob string) bool { ok, err := path.Match(glob, name); return ok && err == nil }
	}
	for _, glob := range only {
		if !slices.ContainsFunc(all, func(sc scenario) bool { return matches(sc.name)(glob) }) {
			return nil, fmt.Errorf("no scenario is called %q", glob)
		}
	}
	for _, glob := range peers {
		if !slices.ContainsFunc(all[0].sides, func(s side) bool { return matches(s.peer)(glob) }) {
			return nil, fmt.Errorf("no peer is called %q", glob)
		}
	}
	all = slices.DeleteFunc(all, func(sc scenario) bool { return !slices.ContainsFunc(only, matches(sc.name)) })
	for i := range all {
		all[i].sides = slices.DeleteFunc(all[i].sides, func(s side) bool {
			return s.peer != "keyline" && !slices.ContainsFunc(peers, matches(s.peer))
		})
	}
	return all, nil
}

func run(ctx context.Context, s settings, chosen []scenario, keep func([]result) error) ([]result, error) {
	server, err := pgdev.Start(ctx, pgdev.Options{Durable: s.Durable})
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Stop() }()
	return play(ctx, &bench{settings: s, server: server, databases: new(atomic.Int64)}, chosen, keep)
}

// play plays the scenarios one after the other, and keeps what it has after each: all of them take longer than some
// terminals live.
func play(ctx context.Context, b *bench, chosen []scenario, keep func([]result) error) ([]result, error) {
	counting := false
	var results []result
	for _, sc := range chosen {
		s := b.settings
		if sc.with != nil {
			s = sc.with(s)
		}
		if s.Costs && !counting {
			if err := preload(ctx, b.server); err != nil {
				return results, err
			}
			counting = true
		}
		rows := make([]result, len(sc.sides))
		for i, side := range sc.sides {
			rows[i] = result{Scenario: sc.name, Unit: sc.unit, Peer: side.peer, Version: side.version, How: side.how,
				Settings: given{settings: s, Own: side.given}, Runs: []outcome{}, Skipped: side.skip}
			if side.scale != nil {
				rows[i].scale(side.scale(s))
			}
		}
		if sc.alone != nil {
			results = append(results, aloneRows(ctx, sc, s, rows)...)
			if err := errors.Join(context.Cause(ctx), keep(results)); err != nil {
				return results, err
			}
			continue
		}
		for n := range s.Runs {
			for i, side := range sc.sides {
				if side.skip != "" {
					continue
				}
				o, err := side.run(ctx, b.with(rows[i].Settings.settings))
				rows[i].add(o, err)
				fmt.Fprintf(os.Stderr, "%s run %d: %s %s: %.1f %s %v\n", sc.name, n+1, side.peer, side.how, o.Value, sc.unit, err)
				if ctx.Err() != nil {
					results = append(results, compare(sc, rows)...)
					return results, errors.Join(context.Cause(ctx), keep(results))
				}
			}
		}
		results = append(results, compare(sc, rows)...)
		if err := keep(results); err != nil {
			return results, err
		}
	}
	return results, nil
}
