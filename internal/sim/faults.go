package sim

import (
	"slices"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
)

// newWorker starts a process; all hosts everything.
func (r *run) newWorker(all bool) *worker {
	w := &worker{name: len(r.workers) + 1, local: map[string]Local{}}
	for _, list := range [][]core.Consumer{r.cfg.Consumers, r.cfg.Late} {
		for _, c := range list {
			if !all && r.cfg.Subsets && r.oneIn(3) {
				continue
			}
			l := Local{Window: c.Window, BatchSize: c.BatchSize}
			for _, row := range r.twin.consumers {
				if row.Name == c.Name {
					l.Revision = row.Revision
				}
			}
			if r.cfg.Local != nil {
				r.cfg.Local(&l)
			}
			w.local[c.Name] = l
		}
	}
	w.id = r.twin.Join()
	w.reg = r.twin.Registry(w.local)
	return w
}

// fault breaks a process in one of the ways.
func (r *run) fault(w *worker) {
	switch r.ch.IntN(6) {
	case 0, 1:
		r.met(Crash)
		r.logf("w%d crashes", w.name)
		r.kill(w)
	case 2:
		r.logf("w%d freezes", w.name)
		w.frozen = true
	case 3:
		if r.twin.live(w.id) {
			r.logf("w%d loses the database, and leaves", w.name)
			r.fence(w)
		}
	case 4:
		r.orphans(w)
	case 5:
		r.logf("w%d drains", w.name)
		w.draining = true
		for _, h := range slices.Clone(w.held) {
			if h.live() {
				r.tell(h, delivery.Drain{})
			}
		}
	}
	if w.frozen && r.oneIn(2) {
		r.logf("w%d is marked lost", w.name)
		r.twin.MarkLost(w.id)
	}
}

// kill ends a process: its transactions are rolled back, its last flushes may
// still arrive. An observer marks it lost; another process takes its place.
func (r *run) kill(w *worker) {
	r.stats.Crashes++
	for _, t := range w.runs {
		if t.tx != nil {
			t.tx.Rollback()
		}
	}
	for _, h := range w.held {
		if h.flush != nil {
			r.limbo = append(r.limbo, &limboFlush{w.id, h.epoch, *h.flush})
		}
		h.stopped = true
	}
	r.twin.MarkLost(w.id)
	i := slices.Index(r.workers, w)
	r.workers[i] = r.newWorker(r.calm)
	r.workers[i].name = len(r.twin.workers)
}

// thaw lets a frozen process go on; if it was marked lost it does not know yet.
func (r *run) thaw(w *worker) {
	r.logf("w%d goes on", w.name)
	if !r.twin.live(w.id) && len(w.held)+len(w.runs) > 0 {
		r.met(Zombie)
	}
	w.frozen = false
}

// fence is what a worker does that finds itself lost, or cut off: it cancels
// its handlers, says that it left, and registers as a new incarnation.
func (r *run) fence(w *worker) {
	if !r.calm {
		r.met(Fenced)
	}
	r.logf("w%d fences itself", w.name)
	r.twin.Leave(w.id)
	for _, h := range slices.Clone(w.held) {
		if h.live() {
			r.tell(h, delivery.Fenced{})
		} else {
			w.drop(h)
			h.stopped = true
		}
	}
	w.draining = false
	w.id = r.twin.Join()
}

func (r *run) rejoin(w *worker) {
	r.met(Drained)
	r.logf("w%d is drained, and starts again", w.name)
	r.twin.Leave(w.id)
	w.draining = false
	w.id = r.twin.Join()
	w.reg = r.twin.Registry(w.local)
}

func (r *run) orphans(w *worker) {
	var held []core.Held
	for _, h := range w.held {
		held = append(held, core.Held{Record: h.claim.Record, Token: h.claim.Token})
	}
	for _, t := range w.runs {
		held = append(held, core.Held{Record: t.work.Record, Token: t.work.Token})
	}
	if r.twin.live(w.id) {
		r.logf("w%d hands back %d orphans", w.name, r.twin.HandBackOrphans(w.id, held))
	}
}
