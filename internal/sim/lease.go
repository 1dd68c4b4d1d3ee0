package sim

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// Join registers a worker incarnation.
func (t *Twin) Join() int64 {
	t.workers = append(t.workers, &workerRow{status: "live", lease: defaultLease})
	return int64(len(t.workers))
}

func (t *Twin) live(worker int64) bool {
	return worker >= 1 && worker <= int64(len(t.workers)) && t.workers[worker-1].status == "live"
}

// MarkLost marks a worker lost, as an observer does after a lease of silence.
func (t *Twin) MarkLost(worker int64) {
	if t.live(worker) {
		t.workers[worker-1].status = "lost"
	}
}

// Leave marks a worker as left.
func (t *Twin) Leave(worker int64) {
	if t.live(worker) {
		t.workers[worker-1].status = "left"
	}
}

// LeaveLater marks a worker as left whose handlers still run: its claims stay for a lease more.
func (t *Twin) LeaveLater(worker int64) {
	if t.live(worker) {
		w := t.workers[worker-1]
		w.status, w.keeps = "left", t.Now.Add(w.lease)
	}
}

// orphanAge keeps the orphan search away from claims whose answer is on its way.
const orphanAge = time.Second

// HasClaims reports whether a worker has claims.
func (t *Twin) HasClaims(worker int64) bool {
	for _, r := range t.records {
		if r.mailbox != nil && r.mailbox.ClaimedBy == worker {
			return true
		}
	}
	return false
}

// Recover frees up to limit claims whose holders are not live.
func (t *Twin) Recover(limit int) int {
	freed := 0
	for _, r := range t.records {
		m := r.mailbox
		if freed == limit {
			break
		}
		if m == nil || m.ClaimedBy == 0 || t.live(m.ClaimedBy) || t.workers[m.ClaimedBy-1].keeps.After(t.Now) {
			continue
		}
		if t.workers[m.ClaimedBy-1].status == "left" {
			t.forgive(r)
		} else if !t.Defects.NoCrashCharge {
			m.Crashes++
		}
		t.free(m)
		freed++
	}
	return freed
}

func (t *Twin) free(m *Mailbox) {
	m.ClaimedBy, m.DueAt, m.Unclean, m.Token = 0, t.Now, true, t.nextToken()
}

// forgive gives back attempts that were written ahead on a record that changes
// hands without a crash: they go on counting as runs, but against no budget. What an earlier claim wrote ahead is left for the next to count; where
// it is not known which claim did, it is given back.
func (t *Twin) forgive(r *record) {
	for _, c := range t.consumers {
		k := pair{r.id, c.ID}
		if row, ok := t.checkpoints[k]; ok && row.State == core.Started && (t.startedBy[k] == r.mailbox.Token || t.startedBy[k] == 0 || t.Defects.ForgiveAny) {
			row.State, row.Granted = core.Ready, min(row.Granted+1, row.Attempt)
			t.checkpoints[k] = row
		}
	}
	for _, d := range t.dead {
		if d.Record == r.id && d.Status == core.DeadWaiting && d.Started && (d.startedBy == r.mailbox.Token || t.Defects.ForgiveAny) {
			d.Started, d.Granted = false, min(d.Granted+1, d.Attempt)
		}
	}
}

// HandBackOrphans frees a worker's claims that are not in held, but for those
// that are so young that their answer may be on its way.
func (t *Twin) HandBackOrphans(worker int64, held []core.Held) int {
	freed := 0
	for _, r := range t.records {
		m := r.mailbox
		if m == nil || m.ClaimedBy != worker || t.Now.Sub(m.ClaimedAt) < orphanAge || slices.Contains(held, core.Held{Record: r.id, Token: m.Token}) {
			continue
		}
		t.forgive(r)
		t.free(m)
		freed++
	}
	return freed
}
