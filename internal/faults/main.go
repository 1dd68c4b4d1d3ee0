package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/keylinehq/keyline/cli"
	"github.com/keylinehq/keyline/internal/clock"
)

// result is the line that a scenario prints.
type result struct {
	ID         string         `json:"id"`
	Name       string         `json:"name"`
	Status     string         `json:"status"` // pass, fail, skip
	Reason     string         `json:"reason,omitempty"`
	Seconds    float64        `json:"seconds"`
	Invariants map[string]any `json:"invariants,omitempty"`
}

func main() {
	if os.Getenv(commandEnv) != "" {
		os.Exit(cli.Run(os.Args[1:]))
	}
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(child(spec))
	}
	os.Exit(suite())
}

func suite() int {
	only := flag.String("n", "", "comma-separated scenarios, by number or number and letter; empty: all")
	limit := flag.Duration("limit", 4*time.Minute, "how long one scenario may take")
	budget := flag.Duration("budget", 0, "begin no scenario once this much time is used; 0: all are played")
	from := flag.Int("from", 0, "begin with the scenario at this position, modulo their number; those before it come last")
	seed := flag.Uint64("seed", 0, "what is drawn at random follows from this; 0: from one of its own, which is printed")
	list := flag.Bool("list", false, "list the scenarios")
	flag.Parse()
	chosen := rotate(choose(*only), *from)
	if *list {
		for _, s := range chosen {
			fmt.Println(s.id, s.name)
		}
		return 0
	}
	if len(chosen) == 0 {
		fmt.Fprintf(os.Stderr, "no scenario %q\n", *only)
		return 2
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	h := &house{clock: clock.Real(), self: self, seed: *seed}
	if h.seed == 0 {
		h.seed = clock.RandomSeed()
	}
	counts := map[string]int{}
	began := h.clock.Mono()
	left := playWithin(chosen, *budget, func() time.Duration { return h.clock.Mono() - began }, func(s scenario) {
		r := h.play(s, *limit)
		counts[r.Status]++
		line, err := json.Marshal(r)
		if err != nil {
			panic(err) // of these types there is none
		}
		fmt.Println(string(line))
	})
	if err := h.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if left > 0 {
		fmt.Println("not begun:", left)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", counts["pass"], counts["fail"], counts["skip"])
	if counts["fail"] > 0 {
		return 1
	}
	return 0
}

// play runs one scenario to its end, whatever that is.
func (h *house) play(s scenario, limit time.Duration) (r result) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	t := &stage{house: h, ctx: ctx, id: s.id, found: map[string]any{}}
	r = result{ID: s.id, Name: s.name, Status: "pass", Invariants: t.found}
	began := h.clock.Mono()
	defer func() { r.Seconds = float64(int((h.clock.Mono()-began).Seconds()*10)) / 10 }()
	func() {
		defer func() {
			switch p := recover().(type) {
			case nil:
			case verdict:
				r.Status, r.Reason = p.status, p.reason
			default:
				panic(p)
			}
		}()
		s.run(t)
	}()
	if len(t.problems) > 0 && r.Status == "pass" {
		r.Status = "fail"
	}
	if r.Status == "fail" {
		if r.Reason != "" {
			t.problems = append(t.problems, r.Reason)
		}
		r.Reason = strings.Join(t.problems, "; ")
		t.dump()
	}
	t.end(r.Status == "fail")
	if r.Status == "fail" {
		r.Reason += " (logs: " + t.dir + ")"
	}
	return r
}

// verdict ends a scenario early.
type verdict struct{ status, reason string }

// scenario is one fault to stage.
type scenario struct {
	id, name string
	run      func(*stage)
}
