package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	osexec "os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// killed is the exit code of an act whose process was killed: nobody was told what became of it.
const killed = -1

// tried is an act that an operator has tried.
type tried struct {
	actor  string // in the audit, its own
	kind   string
	target string
	fate   string
	code   int
	out    []byte // what it printed, as JSON
	told   string // what it said beside that
}

func (a tried) String() string {
	return fmt.Sprintf("%s (%s %s, %s, exit code %d: %s)", a.actor, a.kind, a.target, a.fate, a.code, strings.TrimSpace(a.told))
}

// choice is an act before it is tried.
type choice struct {
	kind, target string
	args         []string
}

// rivals are operators who act at the same time, each with a process for each act. What they choose, and what befalls the
// process on its way, follows from the seed.
type rivals struct {
	t    *stage
	ctx  context.Context
	end  context.CancelFunc
	wait sync.WaitGroup

	began time.Duration

	mu   sync.Mutex
	done []tried
}

const (
	// raceFor is how long rivals act, and raceMost how long they may where that comes to too little, as on a slow machine.
	raceFor  = 25 * time.Second
	raceMost = 75 * time.Second
	// leastDone is how many acts are to succeed for something to be tested.
	leastDone = 10
)

// on reports whether they are to go on.
func (r *rivals) on() bool {
	since := r.t.house.clock.Mono() - r.began
	r.mu.Lock()
	defer r.mu.Unlock()
	succeeded := 0
	for _, a := range r.done {
		if a.code == exitDone {
			succeeded++
		}
	}
	return since < raceFor || since < raceMost && succeeded < leastDone
}

// rivals lets so many operators act until they are told to stop.
func (t *stage) rivals(n int, choose func(*clock.Rand) choice) *rivals {
	r := &rivals{t: t, began: t.house.clock.Mono()}
	r.ctx, r.end = context.WithCancel(t.ctx)
	t.onEnd(func() { r.stop() })
	t.found["seed"] = t.house.seed
	for i := range n {
		random := clock.NewRand(t.house.seed + uint64(i))
		r.wait.Go(func() {
			for n := 1; r.ctx.Err() == nil; n++ {
				c := choose(random)
				r.try(random, c, fmt.Sprintf("rival%d-%d", i, n))
			}
		})
	}
	return r
}

// stop waits for what is under way and returns all that was tried.
func (r *rivals) stop() []tried {
	r.end()
	r.wait.Wait()
	return r.done
}

// fate is what befalls a process on its way.
type fate struct {
	name   string
	after  time.Duration
	frozen time.Duration // 0: it is killed
}

func drawFate(random *clock.Rand) (f fate) {
	f.after = time.Duration(50+random.IntN(700)) * time.Millisecond
	switch random.IntN(10) {
	case 0, 1, 2:
		f.name = "killed"
	case 3, 4:
		f.name, f.frozen = "frozen", time.Duration(100+random.IntN(2500))*time.Millisecond
	case 5:
		f.name, f.frozen = "frozen", 7*time.Second // longer than a registry change may be silent
	default:
		f.name = "left alone"
	}
	return f
}

// try plays an act to its end, or to that of its process.
func (r *rivals) try(random *clock.Rand, c choice, actor string) {
	f := drawFate(random)
	args := append(slices.Clone(c.args), "--json", "--yes", "--reason", "staged", "--actor", actor)
	ctx, cancel := context.WithTimeout(r.t.ctx, time.Minute)
	defer cancel()
	cmd := r.t.process(ctx, args...)
	var out, told bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &told
	a := tried{actor: actor, kind: c.kind, target: c.target, fate: fmt.Sprintf("%s after %s", f.name, f.after)}
	if err := cmd.Start(); err != nil {
		a.code, a.told = exitFound, err.Error()
		r.note(a)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	over, err := await(r.t.house.clock, ended, f.after)
	switch {
	case over || f.name == "left alone":
	case f.frozen == 0:
		_ = cmd.Process.Kill() // it may have ended just now
	default:
		_ = cmd.Process.Signal(syscall.SIGSTOP)
		over, err = await(r.t.house.clock, ended, f.frozen)
		_ = cmd.Process.Signal(syscall.SIGCONT)
	}
	if !over {
		err = <-ended
	}
	a.code, a.out, a.told = cmd.ProcessState.ExitCode(), out.Bytes(), told.String()
	if exit := (*osexec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		a.told += err.Error()
	}
	r.note(a)
}

func (r *rivals) note(a tried) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, a)
}

// await waits for so long for something to end.
func await(c clock.Clock, ended <-chan error, d time.Duration) (over bool, err error) {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-ended:
		return true, err
	case <-timer.C():
		return false, nil
	}
}

// summary counts what was tried, by kind and outcome, and fails where too little of it has come to anything.
func (t *stage) summary(done []tried) {
	counts := map[string]int{}
	for _, a := range done {
		outcome := "other"
		switch a.code {
		case exitDone:
			outcome = "done"
		case exitNotFound, exitNothing:
			outcome = "refused"
		case exitNotYet:
			outcome = "not told"
		case killed:
			outcome = "killed"
		}
		counts[a.kind+" "+outcome]++
		counts[outcome]++
	}
	t.found["acts"] = counts
	if counts["done"] < leastDone || counts["refused"] == 0 || counts["killed"] == 0 {
		t.fail("of %d acts %d were done, %d refused and %d killed: nothing was tested", len(done), counts["done"], counts["refused"], counts["killed"])
	}
}
