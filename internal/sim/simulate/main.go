// Simulate runs the delivery core through seeded schedules of faults on an
// in-memory twin of the store (internal/sim), on all cores. `make sim` runs it.
//
// The last line is a report in JSON; what it says is in docs/guarantees.md.
// The exit code is 1 where a promise was broken, or where a kind of fault never
// came up: then the run says less than it seems to.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/sim"
)

func main() { os.Exit(command()) }

func command() int {
	runs := flag.Int("runs", 20000, "how many schedules")
	from := flag.String("from", "", "the first seed; the others follow it. Empty: drawn, and told")
	seed := flag.String("seed", "", "run the schedule of this seed alone, and print its trace")
	parallel := flag.Int("parallel", runtime.GOMAXPROCS(0), "how many schedules run at once")
	flag.Parse()
	if *seed != "" {
		return one(*seed)
	}
	first := clock.RandomSeed() >> 12 // short enough to be typed, and exact as a JSON number
	if *from != "" {
		var err error
		if first, err = strconv.ParseUint(*from, 10, 64); err != nil {
			return usage(err)
		}
	}
	if *runs < 1 || *parallel < 1 {
		return usage(fmt.Errorf("%d schedules, %d at once: there must be one", *runs, *parallel))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Fprintf(os.Stderr, "%d schedules, from seed %d on\n", *runs, first)
	c := newCampaign(first, *runs)
	c.run(ctx, *parallel)
	return finish(c.report(), *runs)
}

func usage(err error) int {
	fmt.Fprintln(os.Stderr, "simulate:", err)
	return 2
}

// one runs a single schedule and shows all of it. What kinds of fault it has is no matter.
func one(text string) int {
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return usage(err)
	}
	cfg, ch := sim.Seeded(seed)
	cfg.Trace = func(line string) { fmt.Println(line) }
	stats, err := sim.Run(cfg, ch)
	rep := newReport()
	rep.add(seed, stats, err)
	if err != nil {
		fmt.Println("BROKEN:", err)
		shrink(seed)
	}
	rep.print()
	return rep.violated()
}

// shrinkRuns bounds the search for a shorter schedule: some seconds.
const shrinkRuns = 5000

// shrink prints the shortest schedule that is found to fail as the seed's does.
func shrink(seed uint64) {
	cfg, ch := sim.Seeded(seed)
	if s, ok := sim.Shrink(cfg, ch, shrinkRuns); ok {
		fmt.Printf("seed %d, shrunk from %d steps to %d (%d schedules tried): %v\n", seed, s.Was, s.Steps, s.Runs, s.Err)
	}
}

// finish prints what is to be known of a campaign, the failing schedule in full.
func finish(rep *report, runs int) int {
	if rep.FirstSeed != nil {
		seed := *rep.FirstSeed
		cfg, ch := sim.Seeded(seed)
		_, err := sim.Run(cfg, ch)
		fmt.Printf("seed %d: %v\nIts whole trace: make sim SEED=%d\n", seed, err, seed)
		shrink(seed)
	}
	missing := rep.missing()
	if len(missing) > 0 {
		fmt.Printf("No schedule had any of %v: too few of them, or the simulator has changed\n", missing)
	}
	if rep.Runs < runs {
		fmt.Printf("Interrupted: %d of %d schedules have run\n", rep.Runs, runs)
	}
	rep.print()
	if len(missing) > 0 || rep.Runs < runs {
		return 1
	}
	return rep.violated()
}

// report is the last line.
type report struct {
	Runs       int     `json:"runs"`
	Steps      int     `json:"steps"`
	Violations int     `json:"violations"`
	FirstSeed  *uint64 `json:"first_seed"` // the lowest seed that breaks a promise; null: none does
	// Faults counts each kind, those that never came up too.
	Faults map[string]int `json:"faults"`
}

func newReport() *report {
	rep := &report{Faults: map[string]int{}}
	for _, f := range sim.Faults() {
		rep.Faults[f.String()] = 0
	}
	return rep
}

func (rep *report) add(seed uint64, s sim.Stats, err error) {
	rep.Runs++
	rep.Steps += s.Steps
	for _, f := range sim.Faults() {
		rep.Faults[f.String()] += s.Faults[f]
	}
	if err == nil {
		return
	}
	rep.Violations++
	if rep.FirstSeed == nil || seed < *rep.FirstSeed {
		rep.FirstSeed = &seed
	}
}

func (rep *report) missing() []string {
	var list []string
	for _, f := range sim.Faults() {
		if rep.Faults[f.String()] == 0 {
			list = append(list, f.String())
		}
	}
	return list
}

func (rep *report) violated() int {
	if rep.Violations > 0 {
		return 1
	}
	return 0
}

func (rep *report) print() {
	line, err := json.Marshal(rep)
	if err != nil {
		panic(err) // of these types there is none
	}
	fmt.Println(string(line))
}
