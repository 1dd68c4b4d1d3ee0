package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// program is a stand-in for keyline that says what it was called with, and answers.
func program(t *testing.T, answer string, code string) (path, calls string) {
	t.Helper()
	dir := t.TempDir()
	path, calls = filepath.Join(dir, "keyline"), filepath.Join(dir, "calls")
	script := "#!/bin/sh\necho \"$@\" >> " + calls + "\ncat <<'END'\n" + answer + "\nEND\nexit " + code + "\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path, calls
}

// aloneOf runs one of the scenarios that have no peers.
func aloneOf(t *testing.T, name string, p contestants, s settings) []result {
	t.Helper()
	for _, sc := range scenarios(p) {
		if sc.name == name {
			rows := make([]result, len(sc.sides))
			for i, side := range sc.sides {
				rows[i] = result{Scenario: sc.name, Peer: side.peer, How: side.how, Skipped: side.skip}
			}
			return aloneRows(t.Context(), sc, s, rows)
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

const scaleReport = `{"settings": {"cpus": 2}, "cases": [{"name": "8 processes", "figures": [{"name": "events", "unit": "events/s", "value": 2, "runs": [1, 2, 3]}]}],
	"goals": [{"goal": "commits", "want": 1.1, "at_most": true, "got": 1.6, "reached": false}, {"goal": "rate", "want": 0.7, "got": 0.8, "reached": true}],
	"order_violations": 0, "lost": 0, "duplicates": 0}`

// Promise: what Keyline measures alone is in the results with its runs and goals; the peers are there with the reason.
func TestWhatIsMeasuredAloneIsInTheResults(t *testing.T) {
	path, calls := program(t, scaleReport, "0")
	rows := aloneOf(t, "alone-scale", contestants{program: path, plots: "pictures"}, settings{Records: 50_000, Runs: 3, Duration: 4 * time.Second})
	if r := rows[0]; r.How != "8 processes: events" || r.Unit != "events/s" || r.Median != 2 || len(r.Runs) != 3 {
		t.Errorf("the case is %+v", r)
	}
	if r := rows[1]; r.Unit != "at most" || r.Median != 1.6 || *r.Goal != 1.1 || *r.Reached {
		t.Errorf("the first goal is %+v", r)
	}
	if r := rows[2]; r.Unit != "at least" || r.Median != 0.8 || *r.Goal != 0.7 || !*r.Reached {
		t.Errorf("the second goal is %+v", r)
	}
	for _, r := range rows[3:] {
		if r.Peer == "keyline" || r.Skipped == "" {
			t.Errorf("%+v", r)
		}
	}
	text, err := os.ReadFile(calls)
	if want := "bench scale --json --runs 3 --durable=false --duration 4s --scale 0.25 --plot pictures/scale.svg\n"; err != nil || string(text) != want {
		t.Errorf("called with %q (%v), want %q", text, err, want)
	}
	if err := verdict(rows); err != nil {
		t.Error(err)
	}
}

// Promise: a wrong or failed run alone fails the command, and reaches no goal.
func TestAWrongRunAloneIsAFailure(t *testing.T) {
	wrong := `{"runs": [{"events_per_s": 9, "bare_events_per_s": 10}], "ratio_median": 0.9, "lost": 1}`
	path, _ := program(t, wrong, "1")
	rows := aloneOf(t, "alone-drain", contestants{program: path}, settings{Records: 10, Runs: 1})
	if verdict(rows) == nil {
		t.Error("the command would succeed")
	}
	for _, r := range rows {
		if r.Reached != nil && *r.Reached {
			t.Errorf("%s counts as reached", r.How)
		}
	}
	path, _ = program(t, "", "1")
	if rows = aloneOf(t, "alone-footprint", contestants{program: path}, settings{Records: 10, Runs: 1}); verdict(rows) == nil {
		t.Error("a program that says nothing is taken")
	}
	if rows = aloneOf(t, "alone-footprint", contestants{program: ""}, settings{}); rows[0].Skipped == "" || verdict(rows) != nil {
		t.Errorf("without a program: %+v", rows[0])
	}
}
