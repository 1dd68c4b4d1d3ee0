package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Promise: what has been measured is in the file, also where the command is told to stop before its end.
func TestWhatWasMeasuredOutlivesAnEnd(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	enough := errors.New("enough")
	measures := func(value float64) scenario {
		return scenario{name: "measures", sides: []side{{peer: "keyline", run: func(context.Context, *bench) (outcome, error) { return outcome{Value: value}, nil }}}}
	}
	stopped := scenario{name: "is stopped", sides: []side{{peer: "keyline", run: func(ctx context.Context, _ *bench) (outcome, error) {
		stop(enough)
		return outcome{}, context.Cause(ctx)
	}}}}
	path := filepath.Join(t.TempDir(), "f.json")
	var lengths []int
	keep := func(list []result) error { lengths = append(lengths, len(list)); return write(path, list) }
	_, err := play(ctx, &bench{settings: settings{Runs: 2}}, []scenario{measures(1), measures(2), stopped, measures(3)}, keep)
	if !errors.Is(err, enough) {
		t.Errorf("ended with %v", err)
	}
	var kept []result
	text, err := os.ReadFile(path)
	if err = errors.Join(err, json.Unmarshal(text, &kept)); err != nil {
		t.Fatal(err)
	}
	if len(kept) != 3 || kept[0].Median != 1 || kept[1].Median != 2 || kept[2].Error == "" {
		t.Errorf("kept %+v", kept)
	}
	if want := []int{1, 2, 3}; len(lengths) != 3 || lengths[0] != want[0] || lengths[1] != want[1] || lengths[2] != want[2] {
		t.Errorf("kept %v results, want %v", lengths, want)
	}
}

// Promise: a latency run that would end within its warm-up is refused before anything is run, instead of printing a
// median of nothing.
func TestRefusesLatencyRunsThatMeasureNothing(t *testing.T) {
	for _, c := range []struct {
		only     string
		duration time.Duration
		refused  bool
	}{
		{"latency-50", warmUp, true},
		{"*", 300 * time.Millisecond, true},
		{"latency-*", warmUp + time.Second, false},
		{"drain-1,append", 300 * time.Millisecond, false},
	} {
		chosen, err := choose(scenarios(contestants{}), strings.Split(c.only, ","), []string{"*"})
		if err != nil {
			t.Fatal(err)
		}
		if err := (settings{Duration: c.duration}).fit(chosen); (err != nil) != c.refused {
			t.Errorf("%s for %v: %v", c.only, c.duration, err)
		}
	}
}
