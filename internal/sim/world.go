package sim

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// eventTypes are what is appended; consumers choose by globs.
var eventTypes = []string{"a.one", "a.two", "b.one"}

// worldActions are what can happen outside the workers.
func (r *run) worldActions(a *actions) {
	a.add(12, func() { r.append(int64(r.ch.IntN(r.cfg.Records) + 1)) })
	for _, o := range r.open {
		a.add(8, func() { r.endAppend(o) })
	}
	a.add(5, func() { r.advance(time.Duration(1+r.ch.IntN(200)) * time.Millisecond) })
	a.add(3, func() { r.advance(time.Duration(1+r.ch.IntN(8)) * time.Second) })
	for _, l := range r.limbo {
		a.add(3, func() { r.applyLimbo(l) })
	}
	for _, c := range r.twin.consumers {
		if c.sweep != sweepNone {
			a.add(6, func() { r.sweep(c.ID) })
		}
	}
	if r.anyLost() {
		a.add(8, func() { r.recover() })
	}
	if r.cfg.Registry {
		a.add(1, func() { r.changeRegistry() })
	}
	if r.cfg.Operators {
		a.add(3, func() { r.operate() })
	}
	if r.cfg.Faults {
		a.add(1, func() { r.fault(r.workers[r.ch.IntN(len(r.workers))]) })
	}
	for _, w := range r.workers {
		if w.frozen {
			a.add(1, func() { r.thaw(w) })
		}
		if !r.twin.live(w.id) && !w.frozen {
			a.add(4, func() { r.fence(w) })
		}
		if w.draining && len(w.held) == 0 && len(w.runs) == 0 {
			a.add(8, func() { r.rejoin(w) })
		}
	}
}

func (r *run) advance(d time.Duration) { r.twin.Now = r.twin.Now.Add(d) }

func (r *run) append(recordID int64) {
	n := 1
	if r.oneIn(4) {
		n += r.ch.IntN(4)
	}
	events := make([]NewEvent, n)
	for i := range events {
		events[i] = NewEvent{Type: eventTypes[r.ch.IntN(len(eventTypes))], Version: 1}
		if r.oneIn(8) {
			events[i].Version = 2
		}
	}
	o := r.twin.BeginAppend(recordID, events...)
	if o == nil {
		return
	}
	if r.cfg.Poison && r.oneIn(12) && len(r.poison) < 3 {
		r.poison[dkey{pair{recordID, int32(r.ch.IntN(len(r.twin.consumers)) + 1)}, o.events[0].Seq}] = true
	}
	if r.oneIn(3) {
		r.logf("r%d append %d events, open", recordID, n)
		r.open = append(r.open, o)
		return
	}
	r.logf("r%d append %v", recordID, seqs(o.events))
	o.Commit()
}

func (r *run) endAppend(o *Appending) {
	i := slices.Index(r.open, o)
	r.open = slices.Delete(r.open, i, i+1)
	if r.oneIn(4) {
		r.logf("r%d append rolled back", o.record.id)
		for _, e := range o.events {
			for c := range r.twin.consumers {
				delete(r.poison, dkey{pair{e.Record, int32(c + 1)}, e.Seq})
			}
		}
		o.Rollback()
		return
	}
	r.logf("r%d append committed %v", o.record.id, seqs(o.events))
	o.Commit()
}

func (r *run) applyLimbo(l *limboFlush) {
	i := slices.Index(r.limbo, l)
	r.limbo = slices.Delete(r.limbo, i, i+1)
	res := r.commit(l.worker, l.epoch, l.flush)
	r.logf("r%d a dead worker's flush arrives: %+v", l.flush.Record, res)
}

func (r *run) sweep(id int32) {
	epoch := r.twin.epoch
	r.twin.Sweep(id, 1+r.ch.IntN(2))
	if r.twin.epoch != epoch {
		r.stats.Epochs++
		r.logf("c%d is backfilled", id)
	}
}

func (r *run) anyLost() bool {
	return slices.ContainsFunc(r.twin.records, func(x *record) bool {
		return x.mailbox != nil && x.mailbox.ClaimedBy != 0 && !r.twin.live(x.mailbox.ClaimedBy)
	})
}

func (r *run) recover() {
	r.check.beforeRecovery()
	n := r.twin.Recover(1 + r.ch.IntN(3))
	r.logf("recovery frees %d", n)
}

func (r *run) register(c core.Consumer) {
	id := r.twin.Register(c)
	r.logf("c%d registered: %s %v %s tx %v window %d batch %d", id, r.twin.consumers[id-1].Status, c.Types, c.OnDead, c.Transactional, c.Window, c.BatchSize)
	r.check.registered(id)
}

func (r *run) changeRegistry() {
	r.stats.Epochs++
	if len(r.late) > 0 && r.oneIn(4) {
		r.register(r.late[0])
		r.late = r.late[1:]
		return
	}
	id := int32(r.ch.IntN(len(r.twin.consumers)) + 1)
	row := r.twin.consumers[id-1]
	if r.oneIn(5) {
		r.revise(id)
		return
	}
	to := core.Active
	if row.Status == core.Active {
		to = core.Paused
		if r.oneIn(4) {
			to = core.Disabled
		}
	}
	if r.twin.SetStatus(id, to) {
		r.logf("c%d is now %s", id, to)
	}
}

// revise rolls out new code for a consumer: processes with the old code no longer host it.
func (r *run) revise(id int32) {
	r.twin.Update(id, func(c *core.Consumer) {
		switch r.ch.IntN(3) {
		case 0:
			c.Versions = nil
		case 1:
			c.Versions = []int{1}
		default:
			c.Types = [][]string{{"*"}, {"a.*"}, {"b.one", "a.two"}}[r.ch.IntN(3)]
		}
	})
	row := r.twin.consumers[id-1]
	r.check.revised(row)
	r.logf("c%d revision %d types %v versions %v", id, row.Revision, row.Types, row.Versions)
	for _, w := range r.workers {
		if l, ok := w.local[row.Name]; ok && !r.oneIn(4) {
			l.Revision = row.Revision
			w.local[row.Name] = l
		}
	}
}

// operate gives a command about something that is there, or is not.
func (r *run) operate() {
	c := core.Command{Record: int64(r.ch.IntN(r.cfg.Records) + 1), Kind: core.CommandRetry, Actor: "op", Reason: "because"}
	if len(r.twin.dead) > 0 && r.oneIn(2) {
		d := r.twin.dead[r.ch.IntN(len(r.twin.dead))]
		c.Record, c.DeadLetter, c.Kind = d.Record, d.ID, core.CommandRetryDead
		if r.oneIn(3) {
			c.Kind = core.CommandResolveDead
		}
	} else {
		c.Consumer = int32(r.ch.IntN(len(r.twin.consumers)) + 1)
		if r.oneIn(3) {
			c.Kind = core.CommandSkip
		} else if r.oneIn(3) {
			c.Consumer = 0
		}
	}
	r.command(c)
}

func (r *run) command(c core.Command) {
	if r.twin.Command(c) {
		r.stats.Commands++
		r.logf("r%d command %d: %s c%d dead letter %d", c.Record, len(r.twin.commands), c.Kind, c.Consumer, c.DeadLetter)
	}
}

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
	w.frozen = false
}

// fence is what a worker does that finds itself lost, or cut off: it cancels
// its handlers, says that it left, and registers as a new incarnation.
func (r *run) fence(w *worker) {
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
		r.check.beforeRecovery()
		r.logf("w%d hands back %d orphans", w.name, r.twin.HandBackOrphans(w.id, held))
	}
}

// settleDown ends the faults and lets everything come to rest.
func (r *run) settleDown() {
	r.logf("--- faults stop")
	r.calm = true
	for len(r.open) > 0 {
		r.endAppend(r.open[0])
	}
	for _, w := range slices.Clone(r.workers) {
		w.frozen = false
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
		a.pick(r.ch)
		r.check.state()
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
			sooner(h.wakeAt)
		}
	}
	r.twin.Now = at
}

// ordering reports whether the installation keeps lockstep.
func (r *run) lockstep() bool { return r.twin.ordering == keylinetype.Lockstep }
