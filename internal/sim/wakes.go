package sim

// wake sends a notification of a record with work, to some worker.
func (r *run) wake(record int64) {
	if len(r.wakes) < 8 && r.oneIn(2) {
		r.wakes = append(r.wakes, record)
	}
}

// hear is the arrival of the oldest notification, or its loss.
func (r *run) hear() {
	record := r.wakes[0]
	r.wakes = r.wakes[1:]
	w := r.workers[r.ch.IntN(len(r.workers))]
	if w.frozen || w.draining || !r.twin.live(w.id) || r.cfg.Faults && r.oneIn(3) {
		r.logf("r%d the wake is lost", record)
		r.unheard[record] = true
		return
	}
	r.claim(w, 1, record)
}
