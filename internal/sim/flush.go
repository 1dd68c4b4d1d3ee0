package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/keylinehq/keyline/internal/core"
)

// Flush is the flush function for one record: one transaction.
func (t *Twin) Flush(worker, epoch int64, f core.Flush) core.FlushResult {
	res := core.FlushResult{Record: f.Record, Token: f.Token}
	if epoch != t.epoch && !t.Defects.IgnoreEpoch {
		res.Status = core.FlushEpoch
		return res
	}
	r := t.record(f.Record)
	mine := r != nil && r.mailbox != nil && r.mailbox.ClaimedBy == worker && r.mailbox.Token == f.Token
	if t.Defects.NoTokenCheck {
		mine = r != nil && r.mailbox != nil && r.mailbox.ClaimedBy != 0
	}
	if !mine {
		res.Status = core.FlushFenced
		return res
	}
	if res.Rewritten = !writable(&f); res.Rewritten {
		f = *f.WithoutTexts()
	}
	checkShape(&f)
	t.extras(&f)
	gone := t.mayEnd(r, &f, &res)
	if f.Then == core.Settle && gone {
		r.cursor = r.head
		if t.Defects.NoHeadReread {
			r.cursor = f.Head
		}
		r.mailbox = nil
	} else {
		t.updateMailbox(r, &f, f.Then == core.Release || gone)
	}
	t.writeCheckpoints(r, &f)
	if gone || f.Then == core.Release {
		res.Status = core.FlushGone
	}
	return res
}

// writable reports whether the database would take a flush's texts. Most go
// through JSON, which makes valid UTF-8 of them.
func writable(f *core.Flush) bool {
	var texts []string
	for _, d := range f.DeadLetters {
		texts = append(texts, d.Code, d.Message)
	}
	for _, u := range f.DeadUpdates {
		texts = append(texts, u.Code, u.Message, u.Actor, u.Note)
	}
	for _, x := range f.Failures {
		texts = append(texts, x.Code, x.Message, x.Stack)
	}
	for _, x := range f.Skips {
		texts = append(texts, x.Reason)
	}
	for _, a := range f.Applied {
		texts = append(texts, a.Detail)
	}
	for _, c := range f.Upserts {
		if texts = append(texts, c.ErrorCode); !utf8.ValidString(c.ErrorCode) {
			return false
		}
	}
	return !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "\x00") })
}

// valid is a text as JSON carries it.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// mayEnd takes the records lock and looks again at what could have come.
func (t *Twin) mayEnd(r *record, f *core.Flush, res *core.FlushResult) bool {
	if f.Then != core.Settle && f.Then != core.HandBack {
		return false
	}
	if f.Then == core.HandBack && t.Defects.HandBackUnguarded {
		return true
	}
	if r.open != nil {
		res.Busy = true
		return false
	}
	res.Head = r.head
	res.Pending = t.commandsWait(r.id) || f.Then == core.Settle && t.retriesWait(r.id)
	if t.Defects.NoPendingReread {
		res.Pending = false
	}
	return (r.head == f.Head || t.Defects.NoHeadReread) && !res.Pending
}

func (t *Twin) updateMailbox(r *record, f *core.Flush, ends bool) {
	m := r.mailbox
	m.Cursor = max(m.Cursor, f.Cursor)
	if f.Clear {
		m.Crashes, m.Unclean = 0, false
	}
	if !ends {
		return
	}
	m.ClaimedBy, m.Token = 0, t.nextToken()
	if f.Then == core.Release {
		m.DueAt = t.Now
		if soonest := t.Now.Add(time.Second); f.DueAt.After(soonest) {
			m.DueAt = soonest
		} else if f.DueAt.After(t.Now) {
			m.DueAt = f.DueAt
		}
		return
	}
	m.DueAt = f.DueAt
	if f.DueAt.IsZero() {
		m.DueAt = Never
	}
	if len(f.Wants) > 0 {
		m.Wants, m.WantsDueAt = append([]int32(nil), f.Wants...), f.WantsDueAt
	}
}

func (t *Twin) writeCheckpoints(r *record, f *core.Flush) {
	for _, c := range f.Upserts {
		checkRow(c)
		k := pair{f.Record, c.Consumer}
		t.checkpoints[k] = c
		if delete(t.startedBy, k); c.State == core.Started && r.mailbox != nil {
			t.startedBy[k] = r.mailbox.Token
		}
	}
	for _, c := range f.Deletes {
		delete(t.checkpoints, pair{f.Record, c})
		delete(t.startedBy, pair{f.Record, c})
	}
}

// checkRow is the table's CHECK constraints.
func checkRow(c core.Checkpoint) {
	switch {
	case (c.State == core.Backoff) == c.NextAttemptAt.IsZero():
		fail("checkpoint constraint: %+v: due if and only if in backoff", c)
	case c.Seq < 0 || c.Attempt < 0 || c.Granted < 0 || c.Granted > c.Attempt || c.Crashes < 0:
		fail("checkpoint constraint: %+v: counts", c)
	case c.RedeliverTo < 0 && c.RedeliverTo != core.RedeliverUnknown:
		fail("checkpoint constraint: %+v: redeliver_to", c)
	case c.State == core.Started && c.Attempt < 1:
		fail("checkpoint constraint: %+v: started without an attempt", c)
	}
}

// checkShape refuses what SQL would refuse, or carry out in any order: two
// changes of one row in one statement.
func checkShape(f *core.Flush) {
	rows, updates, letters := map[int32]bool{}, map[int64]bool{}, map[dkey]bool{}
	for _, c := range f.Upserts {
		if rows[c.Consumer] || c.Record != f.Record {
			fail("flush: two rows of consumer %d, or another record's", c.Consumer)
		}
		rows[c.Consumer] = true
	}
	for _, c := range f.Deletes {
		if rows[c] {
			fail("flush: consumer %d's row is written and deleted", c)
		}
		rows[c] = true
	}
	for _, u := range f.DeadUpdates {
		if u.ID != 0 && updates[u.ID] {
			fail("flush: two updates of dead letter %d", u.ID)
		}
		updates[u.ID] = true
	}
	for _, d := range f.DeadLetters {
		k := dkey{pair{d.Record, d.Consumer}, d.Seq}
		if letters[k] {
			fail("flush: two dead letters of one delivery: %+v", d)
		}
		letters[k] = true
	}
}

// extras is flush_extras.
func (t *Twin) extras(f *core.Flush) {
	for i := range f.DeadLetters {
		t.deadLetter(&f.DeadLetters[i])
	}
	for i := range f.DeadUpdates {
		t.deadUpdate(&f.DeadUpdates[i], f.Token)
	}
	for _, x := range f.Failures {
		t.failure(x)
	}
	for _, x := range f.Skips {
		t.skip(x)
	}
	for _, a := range f.Applied {
		for _, c := range t.commands {
			if c.ID == a.ID && c.Record == f.Record && !c.Applied {
				c.Applied, c.Done, c.Detail = true, a.Done, valid(a.Detail)
			}
		}
	}
}

func (t *Twin) deadLetter(x *core.DeadLetter) {
	if x.FirstFailedAt.IsZero() {
		fail("dead letter %+v: first_failed_at is null", *x)
	}
	for _, d := range t.dead {
		if d.Record == x.Record && d.Seq == x.Seq && d.Consumer == x.Consumer {
			d.Attempt, d.Reason, d.ErrorCode, d.FailedAt = x.Attempt, x.Reason, x.Code, x.FailedAt
			d.Status, d.Started, d.DueAt = core.DeadAgain, false, time.Time{}
			return
		}
	}
	t.dead = append(t.dead, &DeadRow{
		DeadRetry: core.DeadRetry{ID: int64(len(t.dead) + 1), Record: x.Record, Consumer: x.Consumer, Seq: x.Seq, Attempt: x.Attempt,
			FirstFailedAt: x.FirstFailedAt, ErrorCode: x.Code},
		Reason: x.Reason, Status: core.DeadAgain, FailedAt: x.FailedAt,
	})
}

func (t *Twin) deadUpdate(u *core.DeadUpdate, token int64) {
	if u.ID == 0 {
		t.closeDead(u)
		return
	}
	if u.Status == core.DeadWaiting && u.DueAt.IsZero() {
		fail("dead letter constraint: %+v: retrying without a due time", *u)
	}
	for _, d := range t.dead {
		if d.ID != u.ID || d.Record != u.Record {
			continue
		}
		d.Status, d.Attempt, d.Granted, d.Crashes, d.Started = u.Status, u.Attempt, u.Granted, u.Crashes, u.Started
		d.DueAt = time.Time{}
		if d.startedBy = 0; u.Started {
			d.startedBy = token
		}
		if u.Status == core.DeadWaiting {
			d.DueAt = u.DueAt
		}
		if u.Reason != "" {
			d.Reason = u.Reason
		}
		if u.Code != "" {
			d.ErrorCode = u.Code
		}
		if u.Status == core.DeadAgain {
			d.FailedAt = u.At
		}
	}
}

// closeDead closes whatever dead letter the head delivery of a consumer has.
func (t *Twin) closeDead(u *core.DeadUpdate) {
	for _, d := range t.dead {
		if d.Record == u.Record && d.Seq == u.Seq && d.Consumer == u.Consumer &&
			(d.Status == core.DeadAgain || d.Status == core.DeadWaiting) &&
			(u.Status == core.DeadDelivered || u.Status == core.DeadResolved) {
			d.Status, d.DueAt, d.Started, d.Attempt = u.Status, time.Time{}, false, max(d.Attempt, u.Attempt)
		}
	}
}

func (t *Twin) failure(x core.Failure) {
	k := attemptKey{pair{x.Record, x.Consumer}, x.Seq, x.Attempt}
	if _, ok := t.failures[k]; !ok {
		x.Code = valid(x.Code)
		t.failures[k] = x
	}
}

func (t *Twin) skip(x core.Skip) {
	k := attemptKey{pair{x.Record, x.Consumer}, x.Seq, x.Attempt}
	if _, ok := t.skips[k]; !ok {
		x.Reason = valid(x.Reason)
		t.skips[k] = x
	}
}

// violation is a broken promise; Run returns it as its error.
type violation struct{ text string }

func (v violation) Error() string { return v.text }

func fail(format string, args ...any) { panic(violation{fmt.Sprintf(format, args...)}) }
