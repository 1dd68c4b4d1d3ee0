package sim

import "github.com/keylinehq/keyline/internal/core"

// Join registers a worker incarnation.
func (t *Twin) Join() int64 {
	t.workers = append(t.workers, &workerRow{status: "live"})
	return int64(len(t.workers))
}

func (t *Twin) live(worker int64) bool { return t.workers[worker-1].status == "live" }

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

// Recover frees up to limit claims whose holders are not live.
func (t *Twin) Recover(limit int) int {
	freed := 0
	for _, r := range t.records {
		m := r.mailbox
		if freed == limit {
			break
		}
		if m == nil || m.ClaimedBy == 0 || t.live(m.ClaimedBy) {
			continue
		}
		if t.workers[m.ClaimedBy-1].status == "lost" && !t.Defects.NoCrashCharge {
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

// HandBackOrphans frees a live worker's claims that are not in held.
func (t *Twin) HandBackOrphans(worker int64, held []core.Held) int {
	freed := 0
	for _, r := range t.records {
		m := r.mailbox
		if m == nil || m.ClaimedBy != worker || !t.live(worker) {
			continue
		}
		mine := false
		for _, h := range held {
			mine = mine || h.Record == r.id && h.Token == m.Token
		}
		if !mine {
			t.free(m)
			freed++
		}
	}
	return freed
}
