package supervisor

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// suspects lets records whose claims have ended with their worker's death run
// one at a time: if the process dies again, it is known for which record. A
// record that runs longer than yield gives up the place, though not its run. It
// does no I/O, and is told the time (monotonic).
type suspects struct {
	yield   time.Duration
	waiting []claimItem
	current core.Claim // Record 0: none
	since   time.Duration
}

func (s *suspects) add(c claimItem) { s.waiting = append(s.waiting, c) }

// next takes the record whose turn it is, if the place is free. look is how
// long until it may be, where it is not and somebody waits.
func (s *suspects) next(now time.Duration) (c claimItem, ok bool, look time.Duration) {
	if len(s.waiting) == 0 {
		return claimItem{}, false, 0
	}
	if s.current.Record != 0 && now-s.since < s.yield {
		return claimItem{}, false, s.yield - (now - s.since)
	}
	c = s.waiting[0]
	s.waiting = s.waiting[1:]
	s.current, s.since = c.claim, now
	return c, true, 0
}

// ended: the record is done with here, or no longer a suspect. It reports
// whether the place is free now.
func (s *suspects) ended(record, token int64) bool {
	if s.current.Record != record || s.current.Token != token {
		return false
	}
	s.current = core.Claim{}
	return true
}

// excess takes those beyond max from the end of the queue.
func (s *suspects) excess(max int) []claimItem {
	if len(s.waiting) <= max {
		return nil
	}
	out := s.waiting[max:]
	s.waiting = s.waiting[:max:max]
	return out
}

// drop empties the queue and returns what was in it.
func (s *suspects) drop() []claimItem {
	out := s.waiting
	s.waiting, s.current = nil, core.Claim{}
	return out
}
