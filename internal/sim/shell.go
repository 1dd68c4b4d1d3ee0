package sim

import (
	"time"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
)

// worker is one process, or what is left of it.
type worker struct {
	name  int
	id    int64 // its incarnation's row
	local map[string]Local
	reg   *core.Registry // as last read
	held  []*holding
	// frozen: the process does not run. zombie: it runs, and does not know yet that it was marked lost.
	frozen, draining bool
	skew             time.Duration // of what it takes for the database's time
	// runs are the handlers that are queued or run, also those of claims that were lost.
	runs []*task
}

// holding is a claim and the shell of its machine.
type holding struct {
	w       *worker
	claim   core.Claim
	machine Machine // nil: not loaded yet
	reg     *core.Registry
	stopped bool
	drained bool
	suspect bool // and not cleared yet

	flush   *core.Flush // with the committer
	epoch   int64
	answer  *core.FlushResult // applied, the answer is on its way
	loading []core.EventRange
	clear   bool // the flush asks for it
	reload  bool
	newReg  *core.Registry // the first half of a reload
	wakeAt  time.Time
	alarm   time.Duration // when the timer for it goes off, in monotonic time
}

type taskState int

const (
	queued taskState = iota
	withdrawn
	running
	committed // a HandleTx whose commit's answer was lost
)

// task is a Start: queued, then a running handler.
type task struct {
	h         *holding
	work      core.Work
	given     *core.Work // the machine's own, which must stay as it was
	state     taskState
	cancelled bool
	begun     time.Duration
	tx        *Tx
	booked    core.Booking
	out       core.Outcome
}

func (h *holding) live() bool { return h.machine != nil && !h.stopped }

// start makes the machine of a loaded claim.
func (r *run) start(h *holding, loaded core.Loaded) {
	reg := h.w.reg
	h.reg = reg
	r.check.planned(h)
	options := delivery.Options{Now: r.now(h.w), Random: r.ch.Float64, CrashBudget: r.cfg.CrashBudget, LoadLimit: r.cfg.LoadLimit}
	var effects []delivery.Effect
	if r.cfg.NewMachine != nil {
		h.machine, effects = r.cfg.NewMachine(reg, loaded, options)
	} else {
		h.machine, effects = delivery.New(reg, loaded, options)
	}
	r.carryOut(h, effects)
	if h.w.draining && !h.stopped {
		r.tell(h, delivery.Drain{})
	}
}

// tell steps a machine.
func (r *run) tell(h *holding, m delivery.Message) {
	if !h.live() {
		return
	}
	if h.w.skew != 0 {
		r.met(ClockSkew)
	}
	r.carryOut(h, h.machine.Step(r.now(h.w), m))
}

// carryOut does what the machine asks for. Nothing is answered at once: every
// answer is a thing that happens later, in any order.
func (r *run) carryOut(h *holding, effects []delivery.Effect) {
	for _, e := range effects {
		if r.cfg.Bend != nil {
			var ok bool
			if e, ok = r.cfg.Bend(e); !ok {
				continue
			}
		}
		if h.stopped {
			fail("w%d record %d: effect %T after Stop", h.w.name, h.claim.Record, e)
		}
		r.carryOutOne(h, e)
	}
	r.check.alive(h)
}

func (r *run) carryOutOne(h *holding, e delivery.Effect) {
	switch e := e.(type) {
	case delivery.Start:
		r.logf("w%d r%d  start c%d %v attempt %d", h.w.name, h.claim.Record, e.Work.Consumer.ID, seqs(e.Work.Events), e.Work.Attempt)
		for _, t := range h.w.runs {
			if t.h == h && t.work.Consumer.ID == e.Work.Consumer.ID {
				fail("w%d record %d: consumer %d is started while it runs", h.w.name, h.claim.Record, e.Work.Consumer.ID)
			}
		}
		h.w.runs = append(h.w.runs, &task{h: h, work: *e.Work, given: e.Work})
	case delivery.Withdraw:
		r.logf("w%d r%d  withdraw", h.w.name, h.claim.Record)
		for _, t := range h.w.runs {
			if t.h == h && t.state == queued {
				t.state = withdrawn
			}
		}
	case delivery.Flush:
		r.logf("w%d r%d  flush %s", h.w.name, h.claim.Record, flushText{e.Flush})
		if h.flush != nil || h.answer != nil {
			fail("w%d record %d: a second flush in flight", h.w.name, h.claim.Record)
		}
		h.flush, h.epoch, h.clear = e.Flush, h.reg.Epoch, e.Flush.Clear
	case delivery.LoadEvents:
		if h.loading != nil {
			fail("w%d record %d: a second LoadEvents in flight", h.w.name, h.claim.Record)
		}
		h.loading = append([]core.EventRange(nil), e.Ranges...)
		r.logf("w%d r%d  load events %v", h.w.name, h.claim.Record, h.loading)
	case delivery.Reload:
		if h.reload {
			fail("w%d record %d: a second Reload in flight", h.w.name, h.claim.Record)
		}
		h.reload = true
		r.logf("w%d r%d  reload", h.w.name, h.claim.Record)
	case delivery.WakeAt:
		h.wakeAt, h.alarm = e.At, r.mono()+e.At.Sub(r.now(h.w))
	case delivery.Stop:
		r.stop(h, e.Why)
	}
}

// stop ends a holding. What has not begun never will; what runs is cancelled, runs on, and counts for nothing.
func (r *run) stop(h *holding, why delivery.StopReason) {
	r.logf("w%d r%d  stop %d", h.w.name, h.claim.Record, why)
	h.stopped = true
	kept := h.w.runs[:0]
	for _, t := range h.w.runs {
		switch {
		case t.h != h:
			kept = append(kept, t)
		case t.state == running || t.state == committed:
			if why != delivery.StopFenced {
				fail("record %d: claim ended while a handler of consumer %d runs", h.claim.Record, t.work.Consumer.ID)
			}
			t.cancelled = true
			kept = append(kept, t)
		}
	}
	h.w.runs = kept
	switch why {
	case delivery.StopSettled:
		r.stats.Settled++
	case delivery.StopHandedBack:
		r.stats.HandedBack++
	case delivery.StopFenced:
		r.stats.Fenced++
	}
	h.w.drop(h)
}

func (w *worker) drop(h *holding) {
	for i, x := range w.held {
		if x == h {
			w.held = append(w.held[:i:i], w.held[i+1:]...)
			return
		}
	}
}

func (w *worker) remove(t *task) {
	for i, x := range w.runs {
		if x == t {
			w.runs = append(w.runs[:i:i], w.runs[i+1:]...)
			return
		}
	}
}
