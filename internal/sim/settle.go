package sim

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// settleDown ends the faults and lets everything come to rest.
func (r *run) settleDown() {
	r.logf("--- faults stop")
	r.calm = true
	for len(r.open) > 0 {
		r.endAppend(r.open[0])
	}
	r.wakes = nil
	for _, w := range slices.Clone(r.workers) {
		w.frozen, w.skew = false, 0
		if !r.twin.live(w.id) {
			r.fence(w)
		}
	}
	r.newest()
	for rounds := 0; ; rounds++ {
		r.quiesce()
		if !r.release() {
			return
		}
		if rounds > 2000 {
			fail("after %d rounds of operators' commands, something is still parked", rounds)
		}
	}
}

// newest gives every process the newest code of everything, and all consumers an end of their pause.
func (r *run) newest() {
	r.cfg.Subsets = false
	for _, row := range r.twin.consumers {
		for row.sweep != sweepNone {
			r.twin.Sweep(row.ID, 100)
		}
		if row.Status != core.Active && r.twin.SetStatus(row.ID, core.Active) {
			r.logf("c%d is active again", row.ID)
		}
		for row.sweep != sweepNone {
			r.twin.Sweep(row.ID, 100)
		}
	}
	for _, w := range r.workers {
		for _, list := range [][]core.Consumer{r.cfg.Consumers, r.cfg.Late} {
			for _, c := range list {
				l := Local{Revision: 1 << 20, Window: c.Window, BatchSize: c.BatchSize}
				if r.cfg.Local != nil {
					r.cfg.Local(&l)
				}
				w.local[c.Name] = l
			}
		}
		w.reg = r.twin.Registry(w.local)
		if w.draining && len(w.held)+len(w.runs) == 0 {
			r.rejoin(w)
		}
	}
	r.check.state()
}

// release frees what only an operator can free; it reports whether there was something.
func (r *run) release() bool {
	any := false
	for k, row := range r.twin.checkpoints {
		if row.State == core.Parked && r.twin.consumers[k.consumer-1].Status == core.Active {
			any = true
		}
	}
	if !any {
		return false
	}
	for _, rec := range r.twin.records {
		for _, c := range r.twin.consumers {
			if row, ok := r.twin.checkpoints[pair{rec.id, c.ID}]; ok && row.State == core.Parked {
				r.command(core.Command{Record: rec.id, Consumer: c.ID, Kind: core.CommandSkip, Actor: "op"})
			}
		}
	}
	return true
}

// quiesce runs until nothing has work.
func (r *run) quiesce() {
	for i := 0; ; i++ {
		if i > 8000 {
			fail("nothing comes to rest: %s", r.describe())
		}
		var a actions
		for _, l := range r.limbo {
			a.add(3, func() { r.applyLimbo(l) })
		}
		if r.anyLost() {
			a.add(8, func() { r.recover() })
		}
		idle := true
		for _, w := range slices.Clone(r.workers) {
			if w.draining && len(w.held)+len(w.runs) == 0 {
				r.rejoin(w)
			}
			idle = idle && len(w.held)+len(w.runs) == 0
			r.workerActions(&a, w)
		}
		if idle && len(r.limbo) == 0 && !r.anyLost() && r.nothingLeft() {
			return
		}
		if idle && r.orphaned() {
			for _, w := range r.workers {
				r.orphans(w)
			}
		}
		a.add(3, func() { r.toNextDue() })
		r.happen(&a)
	}
}

// nothingLeft: no mailbox is left that anybody could ever claim.
func (r *run) nothingLeft() bool {
	for _, rec := range r.twin.records {
		if m := rec.mailbox; m != nil && (m.ClaimedBy != 0 || m.DueAt.Before(Never) || m.Wants != nil) {
			return false
		}
	}
	return true
}

func (r *run) orphaned() bool {
	return slices.ContainsFunc(r.twin.records, func(x *record) bool { return x.mailbox != nil && x.mailbox.ClaimedBy != 0 })
}

// toNextDue moves the clock to the next time that somebody waits for.
func (r *run) toNextDue() {
	at := r.twin.Now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.After(r.twin.Now) && t.Before(at) {
			at = t
		}
	}
	for _, rec := range r.twin.records {
		if m := rec.mailbox; m != nil && m.ClaimedBy == 0 {
			sooner(m.DueAt)
			if m.Wants != nil {
				sooner(m.WantsDueAt)
			}
		}
	}
	for _, w := range r.workers {
		for _, h := range w.held {
			if !h.wakeAt.IsZero() {
				sooner(epochStart.Add(h.alarm + r.stepped))
			}
		}
	}
	r.twin.Now = at
}
