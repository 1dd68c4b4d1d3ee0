package delivery

import (
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

// Specimens of what random schedules (internal/sim) have found.

func TestRedeliveryIsSaidWhereEventsWerePassedOver(t *testing.T) {
	// Events 1 and 2 do not concern the consumer; an earlier claim ran 3 and was lost.
	s := start(t, registry(consumer(1, func(c *core.Consumer) { c.Types = []string{"other.*"} })), loaded(4, 0, func(l *core.Loaded) {
		l.Unclean = true
		l.Events[2].Type, l.Events[3].Type = "other.done", "other.done"
	}))
	w := s.start(1)
	if w.Events[0].Seq != 3 || !w.Redelivered {
		t.Fatalf("after an unclean claim: %+v", w)
	}
	s.end(w, nil)
	if w = s.kept().start(1); w.Events[0].Seq != 4 || w.Redelivered {
		t.Fatalf("beyond the window of the earlier claim: %+v", w)
	}
}

func TestEveryEventOfAFailedBatchIsRedelivered(t *testing.T) {
	batch := consumer(1, func(c *core.Consumer) { c.BatchSize = 2 })
	s := start(t, registry(batch), loaded(2, 0))
	s.end(s.start(1), errHandler)
	f := s.flush(core.HandBack)
	s.gone()
	s = start(t, registry(batch), loaded(2, 0, func(l *core.Loaded) {
		c := *row(f, 1)
		c.State, c.NextAttemptAt = core.Backoff, begin
		l.Checkpoints = append(l.Checkpoints, c)
	}))
	for seq := int64(1); seq <= 2; seq++ {
		w := s.start(1)
		if len(w.Events) != 1 || w.Events[0].Seq != seq || !w.Redelivered {
			t.Fatalf("after a failed batch: %+v", w)
		}
		s.end(w, nil)
	}
}
