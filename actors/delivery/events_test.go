package delivery

import (
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

func cutAt(cut int64, events []core.Event) []core.Event {
	for i := range events {
		events[i].Cut = events[i].Seq == cut
	}
	return events
}

// Promise: where an answer was cut, what follows is not taken for pruned.
func TestWhatFollowsACutIsNotKnown(t *testing.T) {
	var c cache
	c.load(&core.Loaded{Base: 0, Head: 9, Events: cutAt(2, events(1, 2))}, 64)
	for seq, want := range map[int64]bool{0: true, 1: true, 2: false, 5: false} {
		if _, _, known := c.next(seq); known != want {
			t.Errorf("above %d: known %v", seq, known)
		}
	}
	c.asked, c.askedTo = append(c.asked, core.EventRange{From: 2, Limit: 64}, core.EventRange{From: 6, Limit: 64}), 9
	c.add(cutAt(4, append(events(3, 4), events(7, 9)...)))
	for seq, want := range map[int64]bool{2: true, 3: true, 4: false, 5: false, 6: true, 8: true, 9: false} {
		if _, _, known := c.next(seq); known != want {
			t.Errorf("then, above %d: known %v", seq, known)
		}
	}
}

// Promise: a few large events are forgotten as many small ones are.
func TestLargeEventsAreForgotten(t *testing.T) {
	var c cache
	list := events(1, 5)
	for i := range list {
		list[i].Payload = make([]byte, keptBytes/4)
	}
	c.load(&core.Loaded{Base: 0, Head: 5, Events: list}, 64)
	c.forget(4, 64)
	if len(c.events) != 1 || c.events[0].Seq != 5 {
		t.Errorf("%d events are kept", len(c.events))
	}
}
