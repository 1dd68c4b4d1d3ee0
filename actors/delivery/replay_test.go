package delivery_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
)

var update = flag.Bool("update", false, "record the histories anew")

// historiesFile has a history in each line.
const historiesFile = "testdata/histories/recorded.jsonl"

// recorder is a machine with a history.
type recorder struct {
	scribe
	m       *delivery.Machine
	h       *history
	draws   []float64
	written int // how much of draws is in the history
}

func (r *recorder) Step(now time.Time, m delivery.Message) []delivery.Effect {
	s := step{At: now, Kind: kind(m), In: short(r.in(m))}
	if string(s.In) == "{}" {
		s.In = nil
	}
	effects := r.m.Step(now, m)
	s.Random, r.written = slices.Clone(r.draws[r.written:]), len(r.draws)
	s.Out = r.out(effects)
	r.h.Steps = append(r.h.Steps, s)
	return effects
}

// schedule runs a schedule, and returns the histories of its machines.
func schedule(t *testing.T, seed uint64) (list []*history) {
	t.Helper()
	cfg, choices := sim.Seeded(seed)
	cfg.Quiet = true
	cfg.NewMachine = func(reg *core.Registry, l core.Loaded, o delivery.Options) (sim.Machine, []delivery.Effect) {
		r := &recorder{h: &history{Seed: seed, Registry: recordOf(reg), Options: optionsRecord{o.Now, o.CrashBudget, o.LoadLimit}}}
		clone(t, l, &r.h.Loaded)
		random := o.Random
		o.Random = func() float64 {
			r.draws = append(r.draws, random())
			return r.draws[len(r.draws)-1]
		}
		list = append(list, r.h)
		var effects []delivery.Effect
		r.m, effects = delivery.New(reg, l, o)
		r.h.First, r.written = r.out(effects), len(r.draws)
		return r, effects
	}
	if _, err := sim.Run(cfg, choices); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return list
}

// clone copies by way of JSON: the machine goes on using what it is given.
func clone(t *testing.T, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// features are what a history shows: each kind of message with the kinds of effects that followed, and what rows and flushes said.
func (h *history) features() map[string]bool {
	found := map[string]bool{}
	see := func(cause string, out []json.RawMessage) {
		var names []string
		for _, e := range out {
			name, _, _ := strings.Cut(strings.TrimPrefix(string(e), `{"`), `"`)
			names = append(names, name)
			for _, word := range []string{`"Redelivered":true`, `"Replay":true`, `"Dead":{`, `"DeadLetters"`, `"DeadUpdates"`, `"Skips"`, `"Failures"`, `"Applied"`,
				`"Clear":true`, `"Wants"`, `"Deletes"`, `"Then":1`, `"Then":2`, `"Then":3`, `"State":"parked"`, `"State":"started"`, `"State":"backoff"`,
				`"RedeliverTo"`, `"LiveFrom"`, `"crash"`, `"exhausted"`, `"permanent"`, `"unsupported_version"`, `"Why":1`, `"Why":2`} {
				if bytes.Contains(e, []byte(word)) {
					found[cause+" "+name+" "+word] = true
				}
			}
		}
		slices.Sort(names)
		found[cause+" "+strings.Join(slices.Compact(names), ",")] = true
	}
	see("Loaded", h.First)
	for _, s := range h.Steps {
		see(s.Kind, s.Out)
	}
	return found
}

// record chooses histories that show something that no other one does.
func record(t *testing.T) {
	t.Helper()
	const schedules, most = 1500, 900 << 10
	seen := map[string]bool{}
	var file bytes.Buffer
	for seed := range uint64(schedules) {
		for _, h := range schedule(t, seed) {
			fresh := false
			for f := range h.features() {
				fresh = fresh || !seen[f]
			}
			text := short(h)
			if !fresh || len(h.Steps) > 60 || file.Len()+len(text) > most {
				continue
			}
			for f := range h.features() {
				seen[f] = true
			}
			file.Write(append(text, '\n'))
		}
	}
	if err := os.WriteFile(historiesFile, file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d KiB show %d things", file.Len()>>10, len(seen))
}

// replay tells a machine what was told then, and compares its answers.
func (h *history) replay() error {
	var (
		s     scribe
		draws []float64
	)
	for _, x := range h.Steps {
		draws = append(draws, x.Random...)
	}
	random := func() (x float64) {
		if len(draws) == 0 {
			return 0.5
		}
		x, draws = draws[0], draws[1:]
		return x
	}
	m, effects := delivery.New(h.Registry.registry(), h.Loaded, delivery.Options{Now: h.Options.Now, Random: random,
		CrashBudget: h.Options.CrashBudget, LoadLimit: h.Options.LoadLimit})
	if err := same("the claim", h.First, s.out(effects)); err != nil {
		return err
	}
	for i, x := range h.Steps {
		msg, err := s.message(x.Kind, x.In)
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i, x.Kind, err)
		}
		if err := same(fmt.Sprintf("step %d, %s %s", i, x.Kind, x.In), x.Out, s.out(m.Step(x.At, msg))); err != nil {
			return err
		}
	}
	return nil
}

func same(what string, want, got []json.RawMessage) error {
	if slices.EqualFunc(want, got, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		return nil
	}
	return fmt.Errorf("%s:\nthen %s\nnow  %s", what, bytes.Join(slices.Collect(raw(want)), []byte(" ")), bytes.Join(slices.Collect(raw(got)), []byte(" ")))
}

func raw(list []json.RawMessage) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, x := range list {
			if !yield(x) {
				return
			}
		}
	}
}

// Promise: what was decided once about a record is decided again by every build.
func TestRecordedHistoriesReplay(t *testing.T) {
	if *update {
		record(t)
	}
	file, err := os.Open(historiesFile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	told, wrong, n := map[string]int{}, 0, 0
	for lines.Scan() {
		n++
		var h history
		if err := strictly(lines.Bytes(), &h); err != nil {
			t.Fatalf("history %d: %v", n, err)
		}
		for _, s := range h.Steps {
			told[s.Kind]++
		}
		if err := h.replay(); err != nil {
			if wrong++; wrong <= 3 {
				t.Errorf("history %d, of seed %d: %v", n, h.Seed, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if wrong > 0 {
		t.Errorf("%d of %d histories are decided otherwise. If that is meant: `go test ./actors/delivery -run TestRecordedHistoriesReplay -update`, "+
			"and a line in CHANGELOG.md that says what is decided otherwise, and why", wrong, n)
	}
	for _, k := range kinds {
		if told[kind(k)] == 0 {
			t.Errorf("no history has a message %s", kind(k))
		}
	}
	t.Logf("%d histories, of %v", n, told)
}
