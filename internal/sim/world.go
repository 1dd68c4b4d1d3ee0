package sim

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
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
	if len(r.wakes) > 0 {
		a.add(6, func() { r.hear() })
	}
	r.clockActions(a)
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
	r.wake(recordID)
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
	r.wake(o.record.id)
}

func (r *run) applyLimbo(l *limboFlush) {
	i := slices.Index(r.limbo, l)
	r.limbo = slices.Delete(r.limbo, i, i+1)
	res := r.commit(l.worker, l.epoch, l.flush)
	r.met(FlushInLimbo)
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
	limit := 1 + r.ch.IntN(3)
	n := r.check.recovery(func() int { return r.twin.Recover(limit) })
	r.logf("recovery frees %d", n)
}

func (r *run) register(c core.Consumer) {
	id := r.twin.Register(c)
	r.logf("c%d registered: %s %v %s tx %v window %d batch %d", id, r.twin.consumers[id-1].Status, c.Types, c.OnDead, c.Transactional, c.Window, c.BatchSize)
	r.check.registered(id)
}

func (r *run) changeRegistry() {
	r.stats.Epochs++
	r.met(RegistryChange)
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
	if r.twin.Command(c) != 0 {
		r.stats.Commands++
		if !r.calm {
			r.met(Command)
			r.wake(c.Record)
		}
		r.logf("r%d command %d: %s c%d dead letter %d", c.Record, len(r.twin.commands), c.Kind, c.Consumer, c.DeadLetter)
	}
}
