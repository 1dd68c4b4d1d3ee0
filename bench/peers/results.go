package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"text/tabwriter"
)

// outcome is what one run of one side came to.
type outcome struct {
	// Value is in the scenario's unit: events/s, tx/s, or the median in ms. 0 in
	// a run that did not come to its end.
	Value           float64 `json:"value"`
	P99             float64 `json:"p99_ms,omitempty"`
	Max             float64 `json:"max_ms,omitempty"`
	OrderViolations int64   `json:"order_violations"`
	Lost            int64   `json:"lost"`
	Duplicates      int64   `json:"duplicates"`
	// Late are events of a latency run that had not been begun at its end. They
	// count with how long they had waited by then, which is too little.
	Late int64 `json:"late,omitempty"`
	// Cost is of one delivery, where the run was to say.
	Cost  *cost  `json:"cost,omitempty"`
	Error string `json:"error,omitempty"`
}

// side is one contestant in one scenario.
type side struct {
	peer, version, how string
	// given are the settings that it got, by its own names.
	given own
	// scale makes the work less for a side that would not end. Nil: the whole of it.
	scale func(settings) settings
	// skip says why the side has no part in the scenario. Empty: it has.
	skip string
	run  runner
}

// own are settings of one side, by its own names.
type own map[string]any

// runner runs one side once.
type runner = func(ctx context.Context, b *bench) (outcome, error)

// scenario is one kind of work. Ratios are the first side's (Keyline's) to each
// other's; where lower is better, the other way round, so that above 1 is always Keyline ahead.
type scenario struct {
	name, unit string
	lower      bool
	goals      map[string]float64 // by peer and how
	// with are its own settings. nil: the run's.
	with  func(settings) settings
	sides []side
	// alone measures the first side where the others have no part. nil: all take turns.
	alone func(ctx context.Context, s settings, first result) ([]result, error)
}

// given are the settings that one side ran with: the run's, scaled for it, and its own.
type given struct {
	settings
	Own own `json:"own"`
	// Bench are those that keyline bench says that it had.
	Bench json.RawMessage `json:"keyline_bench,omitempty"`
}

type result struct {
	Scenario string    `json:"scenario"`
	Unit     string    `json:"unit"`
	Peer     string    `json:"peer"`
	Version  string    `json:"version"`
	How      string    `json:"how"`
	Settings given     `json:"settings"`
	Runs     []outcome `json:"runs"`
	Median   float64   `json:"median"`
	// Cost is what one delivery cost: the median of each figure.
	Cost           *cost   `json:"cost,omitempty"`
	RatioToKeyline float64 `json:"ratio_to_keyline"`
	// Of all runs together. A run that is wrong is a failure, whatever its value.
	OrderViolations int64    `json:"order_violations"`
	Lost            int64    `json:"lost"`
	Duplicates      int64    `json:"duplicates"`
	Goal            *float64 `json:"goal"`
	Reached         *bool    `json:"reached"`
	// Skipped says why the side has no part in the scenario.
	Skipped string `json:"skipped,omitempty"`
	Error   string `json:"error,omitempty"`
	// scaled tells of what the settings have less than the run's.
	scaled string
	late   int64
}

// scale makes the row's work less, as its side is to have it.
func (r *result) scale(to settings) {
	for _, part := range []struct {
		what     string
		all, has int
	}{
		{"records", r.Settings.Records, to.Records},
		{"events of each hot record", r.Settings.HotEvents, to.HotEvents},
		{"events of the one hot record", r.Settings.HotSingle, to.HotSingle},
	} {
		if part.has != part.all {
			r.scaled += fmt.Sprintf("; %d %s", part.has, part.what)
		}
	}
	r.Settings.settings = to
}

// add takes in one run. One that failed keeps what it lost and has no value.
func (r *result) add(o outcome, err error) {
	if err != nil {
		o.Value, o.P99, o.Max, o.Error = 0, 0, 0, err.Error()
		r.Error = o.Error
	}
	r.Runs = append(r.Runs, o)
	r.OrderViolations += o.OrderViolations
	r.Lost += o.Lost
	r.Duplicates += o.Duplicates
	r.late += o.Late
}

// wrong says that a run of the side broke an invariant or failed.
func (r *result) wrong() bool {
	return r.Error != "" || r.OrderViolations+r.Lost+r.Duplicates > 0
}

// medianOf are the values of the runs that came to their end; 0 where none did.
func medianOf(runs []outcome) float64 {
	var values []float64
	for _, o := range runs {
		if o.Error == "" {
			values = append(values, o.Value)
		}
	}
	if len(values) == 0 {
		return 0
	}
	return median(values)
}

// median is the middle value, or the mean of the two in the middle.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// compare fills in medians, ratios and goals.
func compare(sc scenario, rows []result) []result {
	for i := range rows {
		rows[i].Median = medianOf(rows[i].Runs)
		rows[i].Cost = medianCost(rows[i].Runs)
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
			reached := rows[i].RatioToKeyline >= goal && !rows[0].wrong()
			rows[i].Goal, rows[i].Reached = &goal, &reached
		}
	}
	return rows
}

// verdict is an error where a run of Keyline was wrong.
func verdict(results []result) error {
	var errs []error
	for _, r := range results {
		if r.Peer == "keyline" && r.wrong() {
			errs = append(errs, fmt.Errorf("%s: keyline %s is wrong: %d lost, %d repeated, %d out of order %s", r.Scenario, r.How, r.Lost, r.Duplicates, r.OrderViolations, r.Error))
		}
	}
	return errors.Join(errs...)
}

// write writes them as JSON, all or as it was before; with no path, nowhere.
func write(path string, results []result) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

func print(results []result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tpeer\thow\tmedian\tunit\tKeyline is\tgoal\tlost\tduplicates\tout of order\t")
	for _, r := range results {
		if r.Skipped != "" {
			fmt.Fprintf(w, "%s\t%s %s\t%s\tskipped: %s\n", r.Scenario, r.Peer, r.Version, r.How, r.Skipped)
			continue
		}
		goal, ratio := "", ""
		if r.RatioToKeyline != 0 {
			ratio = fmt.Sprintf("%.2f×", r.RatioToKeyline)
		}
		if r.Reached != nil {
			goal = fmt.Sprintf("%.1f %v", *r.Goal, *r.Reached)
		}
		remark := r.Error
		if r.late > 0 && remark == "" {
			remark = fmt.Sprintf("%d not begun at the end", r.late)
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", r.Scenario, r.Peer, r.Version, r.How, figure(r.Median), r.Unit,
			ratio, goal, r.Lost, r.Duplicates, r.OrderViolations, remark)
	}
	_ = w.Flush()
	printCosts(results)
	fmt.Println("\nSettings, and work where it was scaled down:")
	said := map[string]bool{}
	for _, r := range results {
		text, _ := json.Marshal(r.Settings.Own)
		line := fmt.Sprintf("%s, %s: %s%s", r.Peer, r.How, text, r.scaled)
		if r.Settings.Bench != nil {
			text, _ = json.Marshal(r.Settings.Bench)
			line = fmt.Sprintf("%s, %s: %s", r.Peer, r.Scenario, text)
		}
		if r.Skipped == "" && !said[line] {
			said[line] = true
			fmt.Println(" ", line)
		}
	}
}

// figure has no more digits than mean something.
func figure(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

func printCosts(results []result) {
	if !slices.ContainsFunc(results, func(r result) bool { return r.Cost != nil }) {
		return
	}
	fmt.Println("\nOf one delivery, from the start of the workers to their end:")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tpeer\thow\tstatements\tcommits\tWAL bytes\tdead rows\tserver CPU µs\tworker CPU µs\t")
	for _, r := range results {
		if c := r.Cost; c != nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t%.4f\t%.4f\t%.0f\t%.2f\t%.1f\t%.1f\t\n", r.Scenario, r.Peer, r.How, c.Statements, c.Commits, c.WALBytes, c.DeadRows, c.ServerCPU, c.WorkerCPU)
		}
	}
	_ = w.Flush()
}
