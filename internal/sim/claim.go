package sim

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// claimable reports whether the mailbox's row could be locked for update.
func (r *record) claimable() bool {
	return r.mailbox != nil && r.mailbox.ClaimedBy == 0 && r.shared == 0 && (r.open == nil || !r.open.locked)
}

// Claim is the claim function. ok is false where the worker is not live.
func (t *Twin) Claim(q core.ClaimRequest) (claims []core.Claim, ok bool) {
	if !t.live(q.Worker) {
		return nil, false
	}
	var picked []*record
	if q.Record != 0 {
		if r := t.record(q.Record); r != nil && r.claimable() {
			picked = append(picked, r)
		}
	} else {
		picked = t.claimableBy(q)
	}
	for _, r := range picked {
		m := r.mailbox
		m.ClaimedBy, m.ClaimedAt, m.Token = q.Worker, t.Now, t.nextToken()
		m.Wants, m.WantsDueAt = nil, time.Time{}
		claims = append(claims, core.Claim{Record: r.id, Token: m.Token, Crashes: m.Crashes, Unclean: m.Unclean})
	}
	return claims, true
}

func (t *Twin) claimableBy(q core.ClaimRequest) []*record {
	var due, wanting []*record
	for _, r := range t.records {
		switch m := r.mailbox; {
		case !r.claimable():
		case !m.DueAt.After(t.Now):
			due = append(due, r)
		case m.Wants != nil && !m.WantsDueAt.After(t.Now) && overlap(m.Wants, q.Hosted):
			wanting = append(wanting, r)
		}
	}
	slices.SortStableFunc(due, func(a, b *record) int { return a.mailbox.DueAt.Compare(b.mailbox.DueAt) })
	slices.SortStableFunc(wanting, func(a, b *record) int { return a.mailbox.WantsDueAt.Compare(b.mailbox.WantsDueAt) })
	all := append(due, wanting...)
	return all[:min(len(all), q.Limit)]
}

func overlap(a, b []int32) bool {
	return slices.ContainsFunc(a, func(x int32) bool { return slices.Contains(b, x) })
}

// Load reads a claimed record; ok is false where the claim was lost.
func (t *Twin) Load(q core.LoadRequest) (l core.Loaded, ok bool) {
	r := t.record(q.Record)
	if r == nil || r.mailbox == nil || r.mailbox.ClaimedBy == 0 || r.mailbox.Token != q.Token {
		return core.Loaded{}, false
	}
	l = core.Loaded{
		Claim:  core.Claim{Record: r.id, Token: q.Token, Crashes: r.mailbox.Crashes, Unclean: r.mailbox.Unclean},
		Tenant: r.key.Tenant, Key: r.key.Record, Head: r.head, Base: r.base(), Epoch: t.epoch,
	}
	from := []int64{r.base()}
	for _, c := range t.consumers {
		if row, ok := t.checkpoints[pair{r.id, c.ID}]; ok {
			l.Checkpoints = append(l.Checkpoints, row)
			if row.State != core.Parked {
				from = append(from, row.Seq)
			}
		}
	}
	for _, c := range t.commands {
		if c.Record == r.id && !c.Applied {
			l.Commands = append(l.Commands, t.withDead(c.Command))
		}
	}
	for _, d := range t.dead {
		if d.Record == r.id && d.Status == core.DeadWaiting {
			l.Retries = append(l.Retries, d.DeadRetry)
		}
	}
	for _, e := range r.events {
		kept := false
		for _, p := range from {
			is, cut := t.reads(e.Seq, p, q.Limit)
			kept, e.Cut = kept || is, e.Cut || cut
		}
		if kept {
			l.Events = append(l.Events, e)
		}
	}
	return l, true
}

// reads reports whether an event is among those that are read above a position, and whether the answer is cut there.
func (t *Twin) reads(seq, above int64, limit int) (is, cut bool) {
	most := int64(limit)
	if t.Cut > 0 {
		most = min(most, int64(t.Cut))
	}
	return seq > above && seq <= above+most, seq == above+most && most < int64(limit)
}

// withDead adds the dead letter that a command is about, as it stands: it
// names the consumer and the seq.
func (t *Twin) withDead(c core.Command) core.Command {
	for _, d := range t.dead {
		if c.DeadLetter == d.ID && d.Record == c.Record {
			row := d.DeadRetry
			row.DueAt, row.Started = time.Time{}, false
			c.Consumer, c.Seq, c.Dead, c.DeadOpen = d.Consumer, d.Seq, &row, d.Status == core.DeadAgain
		}
	}
	return c
}

// LoadEvents reads more events of records, without a look at claims.
func (t *Twin) LoadEvents(ranges []core.EventRange) []core.Event {
	var events []core.Event
	for _, q := range ranges {
		if r := t.record(q.Record); r != nil {
			for _, e := range r.events {
				is, cut := t.reads(e.Seq, q.From, q.Limit)
				if e.Cut = cut; is {
					events = append(events, e)
				}
			}
		}
	}
	slices.SortStableFunc(events, func(a, b core.Event) int {
		if a.Record != b.Record {
			return int(a.Record - b.Record)
		}
		return int(a.Seq - b.Seq)
	})
	return events
}

// News reads a resident record's head, whether commands wait, and the epoch.
func (t *Twin) News(recordID int64) (epoch int64, n core.News) {
	r := t.record(recordID)
	return t.epoch, core.News{Record: recordID, Head: r.head, Pending: t.commandsWait(recordID)}
}

func (t *Twin) commandsWait(recordID int64) bool {
	return slices.ContainsFunc(t.commands, func(c *CommandRow) bool { return c.Record == recordID && !c.Applied })
}

func (t *Twin) retriesWait(recordID int64) bool {
	return slices.ContainsFunc(t.dead, func(d *DeadRow) bool { return d.Record == recordID && d.Status == core.DeadWaiting })
}
