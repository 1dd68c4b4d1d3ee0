package sim

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// epochStart is when every run begins.
var epochStart = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// run is one schedule at work.
type run struct {
	cfg     Config
	ch      Choices
	twin    *Twin
	check   *checker
	workers []*worker
	open    []*Appending
	limbo   []*limboFlush
	late    []core.Consumer
	// poison are the events that end the process of whoever runs them.
	poison map[dkey]bool
	// calm: faults have stopped, handlers succeed.
	calm  bool
	stats Stats
	trace []string
	// wakes are notifications on their way; unheard are the records of those that were lost.
	wakes   []int64
	unheard map[int64]bool
	// stepped is by how much the database's clock was set; high is the latest time that anybody took for the present.
	stepped time.Duration
	high    time.Time
}

// limboFlush is a flush whose sender is gone: the server may still execute it.
type limboFlush struct {
	worker, epoch int64
	flush         core.Flush
}

// Run carries out one random schedule, then lets the dust settle. The error is
// a broken promise, with the end of the schedule.
func Run(cfg Config, ch Choices) (stats Stats, err error) {
	r := &run{cfg: cfg, ch: ch, twin: NewTwin(epochStart, cfg.Ordering), poison: map[dkey]bool{}, unheard: map[int64]bool{}, late: cfg.Late}
	r.twin.Defects, r.twin.Cut = cfg.Defects, cfg.Cut
	r.check = newChecker(r)
	defer func() {
		if v := recover(); v != nil {
			broken, ok := v.(violation)
			if !ok {
				broken.text = fmt.Sprintf("panic: %v\n%s", v, debug.Stack())
			}
			stats, err = r.stats, broken
			if len(r.trace) > 0 {
				err = fmt.Errorf("%w\nafter:\n%s", broken, r.tail())
			}
		}
	}()
	for _, c := range cfg.Consumers {
		r.register(c)
	}
	for i := range cfg.Records {
		r.twin.NewRecord(keylinetype.Key{Record: fmt.Sprintf("record:%d", i+1)})
	}
	for range cfg.Workers {
		r.workers = append(r.workers, r.newWorker(false))
	}
	parts, inParts := ch.(stepped)
	for range cfg.Steps {
		if inParts && !parts.step() {
			break
		}
		r.step()
	}
	if inParts {
		parts.calm()
	}
	r.settleDown()
	r.check.atTheEnd()
	return r.stats, nil
}

func (r *run) logf(format string, args ...any) {
	if r.cfg.Quiet {
		return
	}
	line := fmt.Sprintf("%8.3f ", r.twin.Now.Sub(epochStart).Seconds()) + fmt.Sprintf(format, args...)
	if r.cfg.Trace != nil {
		r.cfg.Trace(line)
		return
	}
	r.trace = append(r.trace, line)
}

func (r *run) tail() string {
	const most = 400
	return strings.Join(r.trace[max(0, len(r.trace)-most):], "\n")
}

// oneIn is true once in n times.
func (r *run) oneIn(n int) bool { return r.ch.IntN(n) == 0 }

// action is something that can happen now.
type action struct {
	weight int
	do     func()
}

// actions collects what can happen.
type actions struct {
	list  []action
	total int
}

func (a *actions) add(weight int, do func()) {
	if weight > 0 {
		a.list = append(a.list, action{weight, do})
		a.total += weight
	}
}

func (a *actions) pick(ch Choices) bool {
	if a.total == 0 {
		return false
	}
	n := ch.IntN(a.total)
	for _, x := range a.list {
		if n -= x.weight; n < 0 {
			x.do()
			return true
		}
	}
	return false
}

// step lets one thing happen.
func (r *run) step() {
	var a actions
	r.worldActions(&a)
	for _, w := range r.workers {
		r.workerActions(&a, w)
	}
	r.happen(&a)
}

// happen lets one of the actions happen, and looks at the result.
func (r *run) happen(a *actions) {
	a.pick(r.ch)
	r.stats.Steps++
	r.check.state()
}
