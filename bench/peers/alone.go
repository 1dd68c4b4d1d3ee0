package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What Keyline is compared with itself in, or with the bare SQL, is measured by
// `keyline bench`: alone names its scenarios, so that one file has everything.
var alone = []string{"drain", "append", "latency", "pinned", "blocked", "backlog", "scale", "footprint"}

// aloneReason is why no peer is in these scenarios.
const aloneReason = "its goals are of Keyline's own figures"

// aloneScenarios run the program, or are skipped where there is none.
func (p contestants) aloneScenarios() []scenario {
	var list []scenario
	for _, name := range alone {
		sides := []side{keylineSide("default", nil)}
		if p.program == "" {
			sides[0] = sides[0].without("--keyline names no program")
		}
		for _, s := range p.latencySides()[1:] {
			if s.how == byDefault {
				sides = append(sides, s.without(aloneReason))
			}
		}
		list = append(list, scenario{name: "alone-" + name, sides: sides, alone: func(ctx context.Context, s settings, first result) ([]result, error) {
			if name == "drain" {
				return p.bareDrain(ctx, s, first)
			}
			return p.own(ctx, s, first, name)
		}})
	}
	return list
}

// aloneRows puts what was measured before the peers, who have no part in it.
func aloneRows(ctx context.Context, sc scenario, s settings, rows []result) []result {
	first := rows[0]
	if first.Skipped != "" {
		return rows
	}
	measured, err := sc.alone(ctx, s, first)
	fmt.Fprintf(os.Stderr, "%s: %d figures %v\n", sc.name, len(measured), err)
	if err != nil {
		first.Error = err.Error()
		measured = append(measured, first)
	}
	return append(measured, rows[1:]...)
}

// own has a row for each figure of each case, and one for each goal. With fewer
// records in a drain than there are by itself, everything is scaled alike.
func (p contestants) own(ctx context.Context, s settings, first result, name string) ([]result, error) {
	var report struct {
		Settings json.RawMessage `json:"settings"`
		Cases    []struct {
			Name    string `json:"name"`
			Figures []struct {
				Name  string    `json:"name"`
				Unit  string    `json:"unit"`
				Value float64   `json:"value"`
				Runs  []float64 `json:"runs"`
			} `json:"figures"`
		} `json:"cases"`
		Goals []struct {
			Name    string  `json:"goal"`
			Want    float64 `json:"want"`
			Most    bool    `json:"at_most"`
			Got     float64 `json:"got"`
			Reached bool    `json:"reached"`
		} `json:"goals"`
		verdictJSON
	}
	args := []string{"--duration", s.Duration.String(), "--scale", strconv.FormatFloat(float64(s.Records)/full, 'f', -1, 64)}
	if p.plots != "" {
		args = append(args, "--plot", filepath.Join(p.plots, name+".svg"))
	}
	err := p.bench(ctx, s, &report, name, args...)
	if err != nil {
		return nil, err
	}
	first.Settings.Bench = report.Settings
	var rows []result
	for _, c := range report.Cases {
		for _, f := range c.Figures {
			row := first
			row.How, row.Unit, row.Median = c.Name+": "+f.Name, f.Unit, f.Value
			for _, v := range f.Runs {
				row.Runs = append(row.Runs, outcome{Value: v})
			}
			rows = append(rows, row)
		}
	}
	for _, g := range report.Goals {
		row := first
		g.Reached = g.Reached && report.verdictJSON == verdictJSON{}
		row.How, row.Unit, row.Median, row.Goal, row.Reached = "goal: "+g.Name, "at least", g.Got, &g.Want, &g.Reached
		if g.Most {
			row.Unit = "at most"
		}
		rows = append(rows, row)
	}
	return report.on(rows), nil
}

// bareDrain has a row for each number of consumers: the worker, of the rate of
// a loop that does the same SQL without actors and handlers.
func (p contestants) bareDrain(ctx context.Context, s settings, first result) ([]result, error) {
	var rows []result
	for _, consumers := range []int{1, 4} {
		var report struct {
			Settings json.RawMessage `json:"settings"`
			Runs     []struct {
				Worker float64 `json:"events_per_s"`
				Bare   float64 `json:"bare_events_per_s"`
			} `json:"runs"`
			Ratio float64 `json:"ratio_median"`
			verdictJSON
		}
		if err := p.bench(ctx, s, &report, "drain", "--records", strconv.Itoa(s.Records), "--consumers", strconv.Itoa(consumers)); err != nil {
			return rows, err
		}
		worker, bare, goal := first, first, first
		reached := report.Ratio >= bareGoal && report.verdictJSON == verdictJSON{}
		worker.How, worker.Unit = fmt.Sprintf("%d consumers", consumers), "events/s"
		bare.How, bare.Unit = worker.How+": the bare SQL", "events/s"
		goal.How, goal.Unit, goal.Median, goal.Goal, goal.Reached = "goal: "+worker.How+", of the bare SQL", "at least", report.Ratio, new(bareGoal), &reached
		for _, r := range report.Runs {
			worker.Runs, bare.Runs = append(worker.Runs, outcome{Value: r.Worker}), append(bare.Runs, outcome{Value: r.Bare})
		}
		three := []result{worker, bare, goal}
		for i := range three {
			three[i].Settings.Bench = report.Settings
			if runs := three[i].Runs; len(runs) > 0 {
				three[i].Median = medianOf(runs)
			}
		}
		rows = append(rows, report.on(three)...)
	}
	return rows, nil
}

// bareGoal is the least share of the bare SQL's rate.
const bareGoal = 0.8

// verdictJSON is what the program's handlers found wrong.
type verdictJSON struct {
	OrderViolations int64 `json:"order_violations"`
	Lost            int64 `json:"lost"`
	Duplicates      int64 `json:"duplicates"`
}

// on notes it in the first row, so that it is counted once.
func (v verdictJSON) on(rows []result) []result {
	if len(rows) > 0 {
		rows[0].OrderViolations, rows[0].Lost, rows[0].Duplicates = v.OrderViolations, v.Lost, v.Duplicates
	}
	return rows
}

// bench runs the program's scenario and reads its report.
func (p contestants) bench(ctx context.Context, s settings, report any, name string, args ...string) error {
	args = append([]string{"bench", name, "--json", "--runs", strconv.Itoa(s.Runs), "--durable=" + strconv.FormatBool(s.Durable)}, args...)
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it has a server to stop
	// The database is the program's own, not one that the environment names.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DATABASE_URL=") })
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	// It ends with an error, too, where a run was wrong: its report says what.
	if readErr := json.Unmarshal(out.Bytes(), report); readErr != nil {
		return fmt.Errorf("keyline %s: %w: %s", strings.Join(args, " "), errors.Join(err, readErr), strings.TrimSpace(complaint.String()))
	}
	return nil
}
