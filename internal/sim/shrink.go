package sim

import (
	"regexp"
	"slices"
	"strings"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// Shrunk is a shorter schedule that breaks the same promise as another.
type Shrunk struct {
	// Was is how many steps the other had before the faults stopped, Steps how many this one has.
	Was, Steps int
	// Runs is how many schedules were tried for it.
	Runs int
	// Err is the broken promise, and how it came to that.
	Err error
}

// Shrink looks for a shorter schedule that breaks the promise that this one
// breaks, in at most so many runs. ok is false where it breaks none. What it
// finds follows from the schedule: no chance of its own is in it.
//
// The choices of a run are written down step by step. Then steps are left out,
// in halves first and one by one at last, and so are features, workers, records
// and consumers; whatever still fails in the same way is gone on with. A step
// that chooses among less than it did before takes its choice modulo what there is.
func Shrink(cfg Config, ch Choices, most int) (s Shrunk, ok bool) {
	cfg.Quiet, cfg.Trace = true, nil
	rec := &recorder{from: ch}
	_, err := Run(cfg, rec)
	if err == nil {
		return Shrunk{}, false
	}
	k := &shrinking{most: most, kind: kindOf(err), cfg: cfg, tape: rec.tape}
	s.Was = len(k.tape.steps)
	for shorter := true; shorter && k.runs < most; {
		shorter = k.dropSteps()
		shorter = k.simplify() || shorter
	}
	k.cfg.Quiet = false
	_, s.Err = Run(k.cfg, k.tape.play())
	s.Steps, s.Runs = len(k.tape.steps), k.runs
	return s, true
}

var numbers = regexp.MustCompile(`[0-9]+|0x[0-9a-f]+`)

// kindOf is what broke, without which and where.
func kindOf(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return numbers.ReplaceAllString(first, "N")
}

// shrinking is the shortest schedule so far.
type shrinking struct {
	most, runs int
	kind       string
	cfg        Config
	tape       tape
}

// try goes on with a schedule if it fails in the same way.
func (k *shrinking) try(cfg Config, t tape) bool {
	if k.runs >= k.most {
		return false
	}
	k.runs++
	if _, err := Run(cfg, t.play()); err == nil || kindOf(err) != k.kind {
		return false
	}
	k.cfg, k.tape = cfg, t
	return true
}

// dropSteps leaves steps out, as many at once as it can.
func (k *shrinking) dropSteps() (shorter bool) {
	for n := len(k.tape.steps); n > 0; n /= 2 {
		for from := 0; from+n <= len(k.tape.steps); {
			t := k.tape
			t.steps = slices.Delete(slices.Clone(t.steps), from, from+n)
			if k.try(k.cfg, t) {
				shorter = true
			} else {
				from += n
			}
		}
	}
	return shorter
}

// simplify leaves out of the configuration what the failure does not need.
func (k *shrinking) simplify() (simpler bool) {
	without := func(change func(*Config) bool) {
		for {
			cfg := k.cfg
			cfg.Consumers, cfg.Late = slices.Clone(cfg.Consumers), slices.Clone(cfg.Late)
			if !change(&cfg) || !k.try(cfg, k.tape) {
				return
			}
			simpler = true
		}
	}
	for _, flag := range []func(*Config) *bool{
		func(c *Config) *bool { return &c.Clocks }, func(c *Config) *bool { return &c.Poison }, func(c *Config) *bool { return &c.Breakers },
		func(c *Config) *bool { return &c.Subsets }, func(c *Config) *bool { return &c.Operators }, func(c *Config) *bool { return &c.Registry },
		func(c *Config) *bool { return &c.Errors }, func(c *Config) *bool { return &c.Faults },
	} {
		without(func(c *Config) bool { was := *flag(c); *flag(c) = false; return was })
	}
	without(func(c *Config) bool { c.Workers--; return c.Workers > 0 })
	without(func(c *Config) bool { c.Records--; return c.Records > 0 })
	for _, list := range []func(*Config) *[]core.Consumer{
		func(c *Config) *[]core.Consumer { return &c.Late }, func(c *Config) *[]core.Consumer { return &c.Consumers },
	} {
		for i := len(*list(&k.cfg)) - 1; i >= 0; i-- {
			cfg := k.cfg
			l := list(&cfg)
			*l = slices.Delete(slices.Clone(*l), i, i+1)
			if len(cfg.Consumers) > 0 && k.try(cfg, k.tape) {
				simpler = true
			}
		}
	}
	return simpler
}

// stepped is a source of choices that knows of the schedule's parts: before the
// first step, each step, and once the faults have stopped.
type stepped interface {
	// step begins the next step; false: there is none, so that the faults stop.
	step() bool
	calm()
}

// tape is what a run chose in each of its parts.
type tape struct {
	setup []float64
	steps [][]float64
	rest  []float64
}

// recorder writes a tape.
type recorder struct {
	from Choices
	tape tape
	over bool // the faults have stopped
}

func (r *recorder) step() bool {
	r.tape.steps = append(r.tape.steps, nil)
	return true
}

func (r *recorder) calm() { r.over = true }

func (r *recorder) put(v float64) {
	at := &r.tape.setup
	switch n := len(r.tape.steps); {
	case r.over:
		at = &r.tape.rest
	case n > 0:
		at = &r.tape.steps[n-1]
	}
	*at = append(*at, v)
}

// IntN implements Choices.
func (r *recorder) IntN(n int) int {
	v := r.from.IntN(n)
	r.put(float64(v))
	return v
}

// Float64 implements Choices.
func (r *recorder) Float64() float64 {
	v := r.from.Float64()
	r.put(v)
	return v
}

// player chooses what a tape says; where that says nothing, by a seed that is always the same.
type player struct {
	tape tape
	next int // step
	part []float64
	rand *clock.Rand
}

func (t tape) play() *player { return &player{tape: t, part: t.setup, rand: clock.NewRand(1)} }

func (p *player) step() bool {
	if p.next == len(p.tape.steps) {
		return false
	}
	p.part = p.tape.steps[p.next]
	p.next++
	return true
}

func (p *player) calm() { p.part = p.tape.rest }

// IntN implements Choices.
func (p *player) IntN(n int) int {
	if len(p.part) == 0 {
		return p.rand.IntN(n)
	}
	v := int(p.part[0])
	p.part = p.part[1:]
	return v % n
}

// Float64 implements Choices.
func (p *player) Float64() float64 {
	if len(p.part) == 0 {
		return p.rand.Float64()
	}
	v := p.part[0]
	p.part = p.part[1:]
	return v - float64(int(v))
}
