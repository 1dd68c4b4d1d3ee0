package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// workerActions are what can happen in one process.
func (r *run) workerActions(a *actions, w *worker) {
	if w.frozen {
		return
	}
	if !w.draining && r.twin.live(w.id) {
		a.add(8, func() { r.claim(w, r.ch.IntN(3)+1, 0) })
		if r.oneIn(4) {
			a.add(4, func() { r.claim(w, 1, int64(r.ch.IntN(r.cfg.Records)+1)) })
		}
	}
	if w.reg.Epoch != r.twin.epoch {
		a.add(6, func() { r.registryMoved(w) })
	}
	for _, h := range w.held {
		r.holdingActions(a, h)
	}
	for _, t := range w.runs {
		r.taskActions(a, t)
	}
}

func (r *run) holdingActions(a *actions, h *holding) {
	if h.machine == nil {
		if !r.waitsForSuspect(h) {
			a.add(20, func() { r.load(h) })
		}
		return
	}
	if h.flush != nil {
		a.add(20, func() { r.applyFlush(h) })
	}
	if h.answer != nil {
		a.add(20, func() {
			res := *h.answer
			h.answer = nil
			h.suspect = h.suspect && !(h.clear && res.Status == core.FlushKept)
			r.tell(h, &delivery.Flushed{Result: res})
		})
	}
	if h.loading != nil {
		a.add(15, func() {
			ranges := h.loading
			h.loading = nil
			r.tell(h, delivery.EventsLoaded{Events: r.twin.LoadEvents(ranges)})
		})
	}
	if h.reload {
		a.add(15, func() { r.reload(h) })
	}
	if !h.wakeAt.IsZero() && h.alarm <= r.mono() {
		a.add(20, func() { h.wakeAt = time.Time{}; r.tell(h, delivery.Tick{}) })
	}
	a.add(1, func() { r.tell(h, delivery.Tick{}) })
	a.add(4, func() { r.news(h) })
	if h.reg.Epoch != r.twin.epoch {
		a.add(2, func() { r.tell(h, delivery.RegistryMoved{}) })
	}
	if !r.calm && !h.drained {
		a.add(1, func() { r.drain(h) })
	}
}

func (r *run) drain(h *holding) {
	r.logf("w%d r%d drain", h.w.name, h.claim.Record)
	h.drained = true
	r.tell(h, delivery.Drain{})
}

func (r *run) news(h *holding) {
	_, n := r.twin.News(h.claim.Record)
	r.tell(h, delivery.News{Head: n.Head, Pending: n.Pending})
}

func (r *run) hosted(w *worker) []int32 {
	var ids []int32
	for _, c := range w.reg.Consumers {
		if c.Hosted {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func (r *run) claim(w *worker, limit int, only int64) {
	if !r.calm && r.cfg.Errors && r.oneIn(80) {
		r.met(TransientError)
		r.logf("w%d a claim meets a deadlock", w.name)
		return
	}
	claims, ok := r.twin.Claim(core.ClaimRequest{Worker: w.id, Limit: limit, Hosted: r.hosted(w), Unbounded: true, Record: only})
	if !ok {
		return
	}
	for _, c := range claims {
		r.logf("w%d r%d claim token %d crashes %d unclean %v", w.name, c.Record, c.Token, c.Crashes, c.Unclean)
		if only == 0 && r.unheard[c.Record] {
			r.met(WakeLost)
		}
		delete(r.unheard, c.Record)
		if !r.calm && r.cfg.Faults && r.oneIn(40) {
			r.met(ClaimAnswerLost)
			r.logf("w%d r%d the claim's answer is lost", w.name, c.Record)
			continue // an orphan
		}
		w.held = append(w.held, &holding{w: w, claim: c, suspect: c.Crashes > 0})
	}
}

// waitsForSuspect: a process takes suspects one at a time, unless one takes long.
func (r *run) waitsForSuspect(h *holding) bool {
	return h.suspect && slices.ContainsFunc(h.w.held, func(o *holding) bool { return o.suspect && o.machine != nil }) &&
		(!r.cfg.Faults || r.calm || !r.oneIn(20))
}

func (r *run) load(h *holding) {
	loaded, ok := r.twin.Load(core.LoadRequest{Claim: h.claim, Limit: max(r.cfg.LoadLimit, 1)})
	if !ok {
		r.logf("w%d r%d load: fenced", h.w.name, h.claim.Record)
		h.stopped = true
		h.w.drop(h)
		return
	}
	r.logf("w%d r%d load head %d base %d rows %v", h.w.name, h.claim.Record, loaded.Head, loaded.Base, rows(loaded.Checkpoints))
	r.start(h, loaded)
}

func (r *run) registryMoved(w *worker) {
	w.reg = r.twin.Registry(w.local)
	r.logf("w%d reads registry %d", w.name, w.reg.Epoch)
	for _, h := range slices.Clone(w.held) {
		if h.live() && h.reg.Epoch != w.reg.Epoch {
			r.tell(h, delivery.RegistryMoved{})
		}
	}
}

// reload is two reads: the registry, then the record.
func (r *run) reload(h *holding) {
	if h.newReg == nil {
		h.newReg = r.twin.Registry(h.w.local)
		if r.oneIn(3) {
			return
		}
	}
	reg := h.newReg
	loaded, ok := r.twin.Load(core.LoadRequest{Claim: h.claim, Limit: max(r.cfg.LoadLimit, 1)})
	h.newReg, h.reload = nil, false
	if !ok {
		r.tell(h, delivery.Fenced{})
		return
	}
	if reg.Epoch > h.w.reg.Epoch {
		h.w.reg = reg
	}
	h.reg = reg
	r.logf("w%d r%d reloaded epoch %d base %d rows %v", h.w.name, h.claim.Record, reg.Epoch, loaded.Base, rows(loaded.Checkpoints))
	r.tell(h, delivery.Reloaded{Registry: reg, Loaded: loaded})
}

// applyFlush executes a flush; its answer may be lost, so that it is sent again.
func (r *run) applyFlush(h *holding) {
	if !r.calm && r.cfg.Errors && r.oneIn(30) {
		r.met(TransientError)
		r.logf("w%d r%d the flush meets a deadlock", h.w.name, h.claim.Record)
		return
	}
	res := r.commit(h.w.id, h.epoch, *h.flush)
	r.logf("w%d r%d flushed %+v", h.w.name, h.claim.Record, res)
	if !r.calm && r.oneIn(8) {
		r.met(FlushAnswerLost)
		r.logf("w%d r%d the flush's answer is lost", h.w.name, h.claim.Record)
		return
	}
	h.flush, h.answer = nil, &res
}

func (r *run) commit(worker, epoch int64, f core.Flush) core.FlushResult {
	was := r.check.before(f.Record)
	res := r.twin.Flush(worker, epoch, f)
	if res.Busy {
		r.stats.BusyFlushes++
		r.met(AppenderInFlight)
	}
	if f.Clear && res.Status <= core.FlushGone {
		r.stats.Cleared++
	}
	if res.Status == core.FlushGone {
		if f.Then == core.Release {
			r.stats.Released++
		}
		r.stats.Wants += len(f.Wants)
	}
	r.check.flushed(was, worker, &f, res)
	return res
}

func (r *run) taskActions(a *actions, t *task) {
	w := t.h.w
	switch t.state {
	case withdrawn:
		a.add(20, func() {
			w.remove(t)
			r.tell(t.h, delivery.NotStarted{Work: r.check.unchanged(t)})
		})
	case queued:
		if !r.pairBusy(t) {
			a.add(20, func() { r.begin(t) })
		}
		if r.cfg.Breakers && !r.calm && r.oneIn(6) {
			a.add(3, func() { r.refuse(t) })
		}
	case running:
		a.add(15, func() { r.end(t) })
	case committed:
		a.add(15, func() { r.confirm(t) })
	}
}

// pairBusy: a process never starts a pair while an older handler of it runs here.
func (r *run) pairBusy(t *task) bool {
	return slices.ContainsFunc(t.h.w.runs, func(o *task) bool {
		return o != t && o.state >= running && o.work.Record == t.work.Record && o.work.Consumer.ID == t.work.Consumer.ID
	})
}

func (r *run) refuse(t *task) {
	wait := time.Duration(1+r.ch.IntN(15)) * time.Second
	until := r.now(t.h.w).Add(wait)
	r.met(StartRefused)
	r.logf("w%d r%d  c%d refused for %v", t.h.w.name, t.work.Record, t.work.Consumer.ID, wait)
	t.h.w.remove(t)
	r.check.refused(t, until)
	r.tell(t.h, delivery.NotStarted{Work: r.check.unchanged(t), Until: until})
}

// begin lets a queued delivery run.
func (r *run) begin(t *task) {
	w := t.h.w
	if t.work.Consumer.Transactional {
		if t.tx = r.twin.BeginTx(w.id, t.work); t.tx == nil {
			r.finish(t, core.Outcome{Err: keylinetype.ErrFenced, Fenced: true})
			return
		}
		r.stats.Txs++
	}
	r.logf("w%d r%d  begin c%d %v attempt %d redelivered %v", w.name, t.work.Record, t.work.Consumer.ID, seqs(t.work.Events), t.work.Attempt, t.work.Redelivered)
	r.check.begins(t)
	t.state, t.begun = running, r.mono()
	for _, e := range t.work.Events {
		if r.poison[dkey{pair{e.Record, t.work.Consumer.ID}, e.Seq}] {
			r.stats.Killed++
			r.met(KilledByEvent)
			r.logf("w%d is killed by the event", w.name)
			r.kill(w)
			return
		}
	}
}

var errHandler = errors.New("handler failed")

// outcome draws how a handler ends.
func (r *run) outcome(t *task) core.Outcome {
	out := core.Outcome{}
	switch {
	case t.cancelled, t.h.w.draining && r.oneIn(3), r.cfg.Errors && !r.calm && r.oneIn(60):
		out.Err, out.Cancelled = errHandler, true
	case r.calm || !r.cfg.Errors:
	default:
		r.drawError(&out)
	}
	return out
}

func (r *run) drawError(out *core.Outcome) {
	switch n := r.ch.IntN(20); n {
	case 0, 1, 2:
		out.Err = errHandler
	case 3:
		out.Err = keylinetype.Permanent(errHandler)
	case 4:
		out.Err = keylinetype.RetryAfter(errHandler, time.Duration(r.ch.IntN(3))*time.Second)
	case 5:
		out.Err = keylinetype.Snooze(time.Duration(r.ch.IntN(3)) * time.Second)
	case 6:
		out.Err = keylinetype.Skip("not for us")
	case 7:
		out.Err, out.Stack = errHandler, "goroutine 1"
	}
}

// end ends a running handler.
func (r *run) end(t *task) {
	out := r.outcome(t)
	if t.tx == nil {
		r.check.ended(t, &out)
		r.finish(t, out)
		return
	}
	t.out = out
	if out.Cancelled && r.oneIn(2) {
		t.tx.Rollback() // the bookkeeping is left to the record's flush
		r.check.ended(t, &out)
		r.finish(t, out)
		return
	}
	t.booked = delivery.Decide(r.now(t.h.w), r.ch.Float64, t.work.Consumer, &t.work, &out)
	r.commitTx(t)
}

// commitTx commits, unless the connection breaks first or the commit is refused; the reply may be lost.
func (r *run) commitTx(t *task) {
	w := t.h.w
	if r.cfg.Errors && !r.calm && r.oneIn(20) {
		t.tx.Rollback()
		t.tx = nil
		broken := [...]Fault{ConnectionLost, TransientError}[r.ch.IntN(2)]
		r.met(broken)
		r.logf("w%d r%d  c%d %v: no commit, by %v", w.name, t.work.Record, t.work.Consumer.ID, seqs(t.work.Events), broken)
		out := core.Outcome{Err: t.out.Err, Cancelled: t.out.Cancelled}
		if out.Err == nil {
			out.Err = errHandler
		}
		r.check.ended(t, &out)
		r.finish(t, out)
		return
	}
	was := r.check.before(t.work.Record)
	ok := t.tx.Commit(&t.booked)
	t.tx = nil
	r.logf("w%d r%d  commit c%d %v: %v", w.name, t.work.Record, t.work.Consumer.ID, seqs(t.work.Events), ok)
	if !ok {
		r.moved(t)
		return
	}
	r.check.ended(t, &t.out)
	r.check.booked(was, t)
	t.out.Booked = &t.booked
	if !r.calm && r.oneIn(8) {
		r.met(CommitReplyLost)
		r.logf("w%d r%d  the commit's reply is lost", w.name, t.work.Record)
		t.state = committed
		return
	}
	r.finish(t, t.out)
}

// moved: the row was not where it was expected. Had this delivery committed before?
func (r *run) moved(t *task) {
	b := delivery.Decide(r.now(t.h.w), r.ch.Float64, t.work.Consumer, &t.work, &core.Outcome{})
	if mine, has := r.twin.Look(t.h.w.id, &t.work, &b); mine && has {
		r.finish(t, core.Outcome{Booked: &b})
		return
	}
	if row := r.twin.consumers[t.work.Consumer.ID-1]; r.twin.Holds(t.h.w.id, t.work.Record, t.work.Token) && !r.check.interrupted[row.ID] {
		fail("record %d consumer %d: HandleTx finds its row elsewhere under a live claim", t.work.Record, row.ID)
	}
	r.check.excused[t.work.Token] = true
	r.finish(t, core.Outcome{Err: t.out.Err, Fenced: true})
}

// confirm finds out what became of a commit whose reply was lost.
func (r *run) confirm(t *task) {
	switch mine, has := r.twin.Look(t.h.w.id, &t.work, &t.booked); {
	case !mine:
		r.check.excused[t.work.Token] = true
		r.finish(t, core.Outcome{Fenced: true})
	case has:
		r.finish(t, t.out)
	case r.check.interrupted[t.work.Consumer.ID]:
		r.check.excused[t.work.Token] = true // swept away meanwhile, and perhaps another row is there: what it is to be now is not known
		r.finish(t, core.Outcome{Err: errHandler, Cancelled: true})
	default:
		fail("record %d consumer %d: what was committed is gone", t.work.Record, t.work.Consumer.ID)
	}
}

// finish tells the machine; one that has stopped is not told.
func (r *run) finish(t *task, out core.Outcome) {
	r.logf("w%d r%d  end c%d %v: %v cancelled %v fenced %v", t.h.w.name, t.work.Record, t.work.Consumer.ID, seqs(t.work.Events),
		out.Err, out.Cancelled, out.Fenced)
	t.h.w.remove(t)
	r.tell(t.h, &delivery.Ended{Work: r.check.unchanged(t), Outcome: out})
}
