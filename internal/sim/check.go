package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// dkey names a delivery: one event to one consumer.
type dkey struct {
	pair
	seq int64
}

// checker keeps books of its own: what handlers saw and said, and what the twin
// held before. It knows nothing of the machine but its effects.
type checker struct {
	r    *run
	twin *Twin
	// seen are the deliveries of which a handler has begun.
	seen map[dkey]*history
	// pos are the flushed positions as last looked at; base the records' bases.
	pos    map[pair]int64
	status map[int32]core.Status
	base   map[int64]int64
	rows   map[pair]core.Checkpoint
	deads  map[int64]DeadRow
	// clean are the tokens whose claims ended as asked.
	clean map[int64]bool
	// loosed are pairs whose place was given up by disabling: what was not flushed may come again.
	loosed map[pair]time.Duration
	// excused are tokens whose HandleTx lost its row to a consumer's being
	// disabled: the claim was given up for it.
	excused map[int64]bool
	// interrupted are consumers that were ever paused or disabled: a claim that
	// ends meanwhile forgets that they may have run.
	interrupted map[int32]bool
	// loosedAt is the last token drawn when it came back.
	loosedAt map[pair]int64
	// inTrouble are pairs whose written-ahead attempt follows a backoff.
	inTrouble map[pair]bool
	// forgiven are the attempts, and of dead letters' retries, that were given back to a
	// worker that left: a transaction that it had left open may still take them back itself.
	forgiven     map[pair]int
	forgivenDead map[int64]int
	// startedBy are the workers that wrote attempts ahead.
	startedBy map[pair]int64
	// liveFrom are the heads at which consumers were backfilled.
	liveFrom map[pair]int64
	// endedAt is when a record's last claim ended.
	endedAt map[int64]time.Time
	// refusedTo is the latest probe time of a breaker, by consumer.
	refusedTo map[int32]time.Time
	// crashed counts, by delivery, the recoveries that found it written ahead.
	crashed map[dkey]int
	// revisions are a consumer's definitions, with the last epoch of each but the present one.
	revisions map[int32][]definition
	current   map[int32]consumerRow
	// since is the epoch of the registry that a claim's machine began with.
	since map[int64]int64
}

// definition is what a consumer took up to an epoch.
type definition struct {
	row  consumerRow
	upto int64
}

// history is what is known of one delivery.
type history struct {
	begun     int
	successes []success
	last      attempt
	ends      []attempt // the runs that were terminal without success
	// cancelled: the last run was cut short by the runtime.
	cancelled bool
}

type success struct {
	token int64
	at    time.Duration // monotonic
}

// attempt is a run that has ended.
type attempt struct {
	token    int64
	attempt  int
	granted  int
	charged  bool
	terminal bool // by the outcome and the consumer's policy
	reason   core.DeadReason
	batch    bool
	// notBefore is the earliest time of the next run, unless an operator says otherwise.
	notBefore time.Time
	at        time.Time
}

func newChecker(r *run) *checker {
	return &checker{
		r: r, twin: r.twin, seen: map[dkey]*history{}, pos: map[pair]int64{}, status: map[int32]core.Status{},
		base: map[int64]int64{}, rows: map[pair]core.Checkpoint{}, deads: map[int64]DeadRow{}, clean: map[int64]bool{},
		loosed: map[pair]time.Duration{}, endedAt: map[int64]time.Time{}, refusedTo: map[int32]time.Time{}, crashed: map[dkey]int{},
		revisions: map[int32][]definition{}, since: map[int64]int64{}, excused: map[int64]bool{}, loosedAt: map[pair]int64{}, liveFrom: map[pair]int64{}, inTrouble: map[pair]bool{}, forgiven: map[pair]int{}, forgivenDead: map[int64]int{}, startedBy: map[pair]int64{}, interrupted: map[int32]bool{}, current: map[int32]consumerRow{},
	}
}

func (c *checker) history(k dkey) *history {
	h := c.seen[k]
	if h == nil {
		h = &history{}
		c.seen[k] = h
	}
	return h
}

func (c *checker) registered(id int32) {
	for _, rec := range c.twin.records {
		c.pos[pair{rec.id, id}] = c.twin.Position(rec.id, id)
	}
	c.status[id] = c.twin.consumers[id-1].Status
	c.current[id] = *c.twin.consumers[id-1]
	if c.status[id] == core.Backfilling {
		for _, rec := range c.twin.records {
			c.pos[pair{rec.id, id}] = 0
		}
	}
}

// alive: a machine that is not stopped waits for something that will come, and
// holds a claim without a handler only for a moment.
func (c *checker) alive(h *holding) {
	if !h.live() || h.flush != nil || h.answer != nil || h.loading != nil || h.reload {
		return
	}
	for _, t := range h.w.runs {
		if t.h == h {
			return
		}
	}
	switch {
	case h.wakeAt.IsZero():
		fail("w%d record %d: the machine waits for nothing", h.w.name, h.claim.Record)
	case h.wakeAt.After(c.r.latest().Add(time.Second)):
		fail("w%d record %d: the machine holds the claim for %v with nothing to do", h.w.name, h.claim.Record, h.wakeAt.Sub(c.r.now(h.w)))
	}
}

// planned notes the registry that a machine begins with.
func (c *checker) planned(h *holding) { c.since[h.claim.Token] = h.reg.Epoch }

// revised notes a consumer's new definition.
func (c *checker) revised(row *consumerRow) {
	c.revisions[row.ID] = append(c.revisions[row.ID], definition{c.current[row.ID], c.twin.epoch - 1})
	c.current[row.ID] = *row
}

// passed reports whether a claim's machine may have moved a consumer past an
// event by a definition that it had before.
func (c *checker) passed(row *consumerRow, e *core.Event, token int64) bool {
	for _, d := range c.revisions[row.ID] {
		if d.upto >= c.since[token] && c.applies(&d.row, e) != core.Applies {
			return true
		}
	}
	return false
}

func (c *checker) refused(t *task, until time.Time) {
	id := t.work.Consumer.ID
	if until.After(c.refusedTo[id]) {
		c.refusedTo[id] = until
	}
}

// recovery frees claims, and counts the crashes of attempts that were written
// ahead under those of them whose worker is lost.
func (c *checker) recovery(free func() int) int {
	lost := map[int64]bool{}
	for _, rec := range c.twin.records {
		m := rec.mailbox
		lost[rec.id] = m != nil && m.ClaimedBy != 0 && c.twin.workers[m.ClaimedBy-1].status == "lost"
	}
	n := free()
	freed := func(record int64) bool { return lost[record] && c.twin.record(record).mailbox.ClaimedBy == 0 }
	for k, row := range c.twin.checkpoints {
		if row.State != core.Started || !freed(k.record) {
			continue
		}
		// The worker may have read an older definition, by which an earlier event was the next.
		rec := c.twin.record(k.record)
		next := cmp.Or(c.nextSeq(rec, c.twin.consumers[k.consumer-1], row.Seq), rec.head)
		for seq := row.Seq + 1; seq <= next; seq++ {
			c.crashed[dkey{k, seq}]++
		}
	}
	for _, d := range c.twin.dead {
		if d.Started && d.Status == core.DeadWaiting && freed(d.Record) {
			c.crashed[dkey{pair{d.Record, d.Consumer}, d.Seq}]++
		}
	}
	return n
}

// applies is the checker's own reading of the registry.
func (c *checker) applies(row *consumerRow, e *core.Event) core.Applicability {
	if row.Start.Kind == keylinetype.StartAt && e.CreatedAt.Before(row.Start.Time) {
		return core.NotApplicable
	}
	if row.ContractOnly || !slices.ContainsFunc(row.Types, func(g string) bool { return glob(g, e.Type) }) {
		return core.NotApplicable
	}
	if row.Versions != nil && !slices.Contains(row.Versions, e.Version) {
		return core.UnsupportedVersion
	}
	return core.Applies
}

// glob knows the globs that the runs use: one star at the end.
func glob(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(s, prefix)
	}
	return pattern == s
}

// nextSeq is the seq of the first event above `after` that concerns a consumer; 0: none.
func (c *checker) nextSeq(rec *record, row *consumerRow, after int64) int64 {
	for i := range rec.events {
		if e := &rec.events[i]; e.Seq > after && c.applies(row, e) != core.NotApplicable {
			return e.Seq
		}
	}
	return 0
}

// deadRow finds the dead letter of a delivery.
func (c *checker) deadRow(k dkey) *DeadRow {
	for _, d := range c.twin.dead {
		if d.Record == k.record && d.Consumer == k.consumer && d.Seq == k.seq {
			return d
		}
	}
	return nil
}

func (c *checker) skipped(k dkey) bool {
	for s := range c.twin.skips {
		if s.pair == k.pair && s.seq == k.seq {
			return true
		}
	}
	return false
}

// operatorActs reports whether a command about this consumer is under way on the record.
func (c *checker) operatorActs(record int64, consumer int32) bool {
	return slices.ContainsFunc(c.twin.commands, func(x *CommandRow) bool {
		if x.DeadLetter != 0 {
			for _, d := range c.twin.dead {
				if d.ID == x.DeadLetter && d.Consumer == consumer && d.Record == record {
					return !x.Applied
				}
			}
			return false
		}
		return x.Record == record && !x.Applied && (x.Consumer == 0 || x.Consumer == consumer)
	})
}

func (c *checker) lockstep() bool { return c.twin.ordering == keylinetype.Lockstep }

// atTheEnd: nothing is lost, nothing waits.
func (c *checker) atTheEnd() {
	for _, rec := range c.twin.records {
		if rec.head == 0 {
			continue
		}
		if rec.mailbox != nil {
			fail("record %d is not settled: %s", rec.id, c.r.describe())
		}
		for _, row := range c.twin.consumers {
			if p := c.twin.Position(rec.id, row.ID); p != rec.head {
				fail("record %d consumer %d ends at %d of %d", rec.id, row.ID, p, rec.head)
			}
		}
		if c.twin.commandsWait(rec.id) {
			fail("record %d: a command was never applied", rec.id)
		}
		if c.twin.retriesWait(rec.id) {
			fail("record %d: a dead letter's retry was never carried out", rec.id)
		}
	}
	c.r.stats.Dead = len(c.twin.dead)
	c.r.stats.Skips = len(c.twin.skips)
	for _, d := range c.twin.dead {
		if d.Reason == core.DeadCrashes {
			c.r.stats.CrashDead++
		}
	}
	for _, x := range c.twin.commands {
		if x.Done {
			c.r.stats.CommandsDone++
		}
	}
}

func seqs(events []core.Event) []int64 {
	out := make([]int64, len(events))
	for i := range events {
		out[i] = events[i].Seq
	}
	return out
}

// rows and flushText are what traces say of them; nothing is written unless a trace is kept.
type rows []core.Checkpoint

func (list rows) String() string {
	var b strings.Builder
	for _, k := range list {
		fmt.Fprintf(&b, "[c%d@%d %s a%d g%d x%d]", k.Consumer, k.Seq, k.State, k.Attempt, k.Granted, k.Crashes)
	}
	return b.String()
}

type flushText struct{ *core.Flush }

func (f flushText) String() string {
	s := fmt.Sprintf("%s head %d cursor %d up %s del %v", [...]string{"keep", "SETTLE", "HANDBACK", "RELEASE"}[f.Then], f.Head, f.Cursor, rows(f.Upserts), f.Deletes)
	if f.Clear {
		s += " clear"
	}
	if n := len(f.DeadLetters) + len(f.DeadUpdates) + len(f.Skips) + len(f.Applied); n > 0 {
		s += fmt.Sprintf(" dead %d/%d skips %d applied %v", len(f.DeadLetters), len(f.DeadUpdates), len(f.Skips), f.Applied)
	}
	if f.Then == core.HandBack {
		s += fmt.Sprintf(" due %v wants %v %v", f.DueAt.Sub(epochStart), f.Wants, f.WantsDueAt.Sub(epochStart))
	}
	return s
}

func (r *run) describe() string {
	var b strings.Builder
	for _, rec := range r.twin.records {
		fmt.Fprintf(&b, "\nrecord %d head %d cursor %d mailbox %+v", rec.id, rec.head, rec.cursor, rec.mailbox)
		for _, c := range r.twin.consumers {
			if k, ok := r.twin.checkpoints[pair{rec.id, c.ID}]; ok {
				fmt.Fprintf(&b, " %s", rows([]core.Checkpoint{k}))
			}
		}
	}
	for _, w := range r.workers {
		fmt.Fprintf(&b, "\nw%d id %d live %v draining %v held %d runs %d", w.name, w.id, r.twin.live(w.id), w.draining, len(w.held), len(w.runs))
	}
	return b.String()
}
