package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWrongRunsAreSeen(t *testing.T) {
	for name, c := range map[string]struct {
		events []int // of record 1, of two
		want   outcome
	}{
		"in order":       {[]int{0, 1, 2}, outcome{}},
		"lost":           {[]int{0, 2}, outcome{Lost: 1}},
		"repeated":       {[]int{0, 1, 1, 2}, outcome{Duplicates: 1}},
		"repeated later": {[]int{0, 1, 2, 0}, outcome{Duplicates: 1}},
		"out of order":   {[]int{0, 2, 1}, outcome{OrderViolations: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOrderedBooks(2, 3)
			for i := range 3 {
				b.handledInOrder(0, i)
			}
			for _, e := range c.events {
				b.handledInOrder(1, e)
			}
			if got := b.outcome(0); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestHandlersOfOneRecordSideBySideAreOutOfOrder(t *testing.T) {
	b := newOrderedBooks(1, 2)
	b.records[0].inside.Add(1) // one is at work
	b.handledInOrder(0, 1)
	if got := b.outcome(0).OrderViolations; got != 1 {
		t.Errorf("%d violations, want 1", got)
	}
}

func TestHotNumbersKeepEachRecordsOrder(t *testing.T) {
	const records, events = 3, 4
	var all []int64
	next := make([]int, records)
	for i := range records * events {
		n := hotNumber(i, records, events)
		all = append(all, n)
		if record, event := int(n)/events, int(n)%events; event != next[record] {
			t.Fatalf("insert %d is event %d of record %d, want %d", i, event, record, next[record])
		} else {
			next[record]++
		}
	}
	slices.Sort(all)
	if len(slices.Compact(all)) != records*events {
		t.Errorf("numbers repeat: %v", all)
	}
}

func TestNumberOfReadsNumbered(t *testing.T) {
	if got := numberOf(numbered(42)); got != 42 {
		t.Errorf("got %d, want 42", got)
	}
	if got := numberOf([]byte(`{}`)); got != -1 {
		t.Errorf("got %d, want -1", got)
	}
}

func TestResultsHaveTheirFields(t *testing.T) {
	sc := scenario{name: "x", goals: map[string]float64{"peer tuned": 3}}
	rows := []result{{Peer: "keyline"}, {Peer: "peer", How: "tuned"}, {Peer: "peer", How: "default"}}
	rows[0].add(outcome{Value: 9}, nil)
	rows[1].add(outcome{Value: 1}, nil)
	rows[1].add(outcome{Value: 3}, nil) // of two runs neither counts for both
	rows[2].add(outcome{Value: 5, Lost: 7}, errors.New("it broke"))
	rows = compare(sc, rows)
	if r := rows[1]; r.RatioToKeyline != 4.5 || !*r.Reached || *r.Goal != 3 {
		t.Errorf("ratio %v, reached %v of %v", r.RatioToKeyline, *r.Reached, *r.Goal)
	}
	if r := rows[2]; r.Median != 0 || r.Lost != 7 || r.Runs[0].Error == "" {
		t.Errorf("a failed run has a value, or hides its loss: %+v", r)
	}
	text, err := json.Marshal(rows[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"scenario", "peer", "version", "settings", "own", "runs", "ratio_to_keyline", "order_violations", "lost", "duplicates", "goal", "reached"} {
		if !strings.Contains(string(text), `"`+field+`":`) {
			t.Errorf("there is no %s in %s", field, text)
		}
	}
}

func TestNoGoalIsReachedByAWrongKeyline(t *testing.T) {
	sc := scenario{goals: map[string]float64{"peer tuned": 1}}
	rows := []result{{Peer: "keyline"}, {Peer: "peer", How: "tuned"}}
	rows[0].add(outcome{Value: 9, Duplicates: 1}, nil)
	rows[1].add(outcome{Value: 2}, nil)
	if rows = compare(sc, rows); *rows[1].Reached {
		t.Error("a goal counts as reached though Keyline repeated an event")
	}
	if verdict(rows) == nil {
		t.Error("the command would succeed")
	}
}

// Every peer is in every scenario, if only to say why it has no part in it.
func TestNoPeerIsSilentlyAbsent(t *testing.T) {
	all := scenarios(contestants{node: nodePeers{skip: "node is not installed"}})
	names := func(sc scenario) []string {
		var names []string
		for _, s := range sc.sides {
			names = append(names, s.peer)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	for _, sc := range all {
		if got, want := names(sc), names(all[0]); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", sc.name, got, want)
		}
		if sc.sides[0].peer != "keyline" {
			t.Errorf("%s compares with %s", sc.name, sc.sides[0].peer)
		}
		for _, s := range sc.sides {
			if s.run == nil && s.skip == "" {
				t.Errorf("%s: %s %s neither runs nor says why", sc.name, s.peer, s.how)
			}
			if s.given == nil {
				t.Errorf("%s: %s %s has no settings", sc.name, s.peer, s.how)
			}
		}
	}
}

func TestTheFirstSecondIsCountedAndNotMeasured(t *testing.T) {
	s := newStopwatch(2)
	begun := time.Now()
	for id, ms := range []int{900, 800, 1, 3, 2} {
		s.commit[int64(id)] = begun
		s.start[int64(id)] = begun.Add(time.Duration(ms) * time.Millisecond)
	}
	delete(s.start, 1)
	if got, want := s.outcome(), (outcome{Value: 2, P99: 3, Max: 3, Lost: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestChoosingWhatIsNotThereFails(t *testing.T) {
	for _, c := range []struct{ scenarios, peers string }{{"drain", "*"}, {"*", "rabbit"}} {
		if _, err := choose(scenarios(contestants{}), []string{c.scenarios}, []string{c.peers}); err == nil {
			t.Errorf("%s of %s is taken", c.scenarios, c.peers)
		}
	}
	got, err := choose(scenarios(contestants{}), []string{"hot-*"}, []string{"dbos"})
	if err != nil || len(got) != 2 {
		t.Fatalf("got %d scenarios, %v", len(got), err)
	}
	for _, s := range got[0].sides {
		if s.peer != "keyline" && s.peer != "dbos" {
			t.Errorf("%s was not chosen", s.peer)
		}
	}
}

func TestCostsAreOfOneDelivery(t *testing.T) {
	before := cost{Statements: 10, Commits: 1, WALBytes: 1000, DeadRows: 5, ServerCPU: 100, WorkerCPU: 50}
	after := cost{Statements: 30, Commits: 3, WALBytes: 1400, DeadRows: 5, ServerCPU: 500, WorkerCPU: 70}
	got := *after.since(before, 20)
	if want := (cost{Statements: 1, Commits: 0.1, WALBytes: 20, ServerCPU: 20, WorkerCPU: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	runs := []outcome{{Cost: &cost{Commits: 3}}, {Cost: &cost{Commits: 1}}, {Cost: &cost{Commits: 2}}, {}, {Cost: &cost{Commits: 9}, Error: "failed"}}
	if m := medianCost(runs); m == nil || m.Commits != 2 {
		t.Errorf("median %+v", m)
	}
	if m := medianCost([]outcome{{}}); m != nil {
		t.Errorf("without any: %+v", m)
	}
}

// The times of a process that works grow, and so do those that it shares with its parent once it has ended.
func TestAProcessesCPUIsRead(t *testing.T) {
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	before, err := ticks(os.Getpid(), 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	after, err := ticks(os.Getpid(), 4)
	if err != nil || after <= before {
		t.Errorf("%v µs before, %v after, %v", before, after, err)
	}
}
