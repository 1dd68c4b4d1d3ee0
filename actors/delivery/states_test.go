package delivery

import (
	"slices"
	"testing"
)

// The arrows, written down once more, apart from the table that the code uses.
var deliveryArrows = []string{
	"pending>processing", "pending>ignored", "pending>skipped_unsupported_version", "pending>dead_letter", "pending>parked",
	"processing>completed", "processing>retry_scheduled", "processing>skipped_unsupported_version", "processing>ignored",
	"processing>dead_letter", "processing>parked", "processing>pending",
	"retry_scheduled>processing", "dead_letter>pending", "parked>pending",
}

func TestOnlyTheTablesTransitionsAreAllowed(t *testing.T) {
	states := []DeliveryState{DeliveryPending, DeliveryProcessing, DeliveryRetry, DeliveryCompleted, DeliveryIgnored, DeliveryUnsupported,
		DeliveryDead, DeliveryParked}
	for _, from := range states {
		for _, to := range states {
			err := from.To(to)
			if want := slices.Contains(deliveryArrows, string(from)+">"+string(to)); (err == nil) != want {
				t.Errorf("%s to %s: %v, want allowed %v", from, to, err, want)
			}
		}
	}
	if DeliveryState("made up").To(DeliveryPending) == nil || DeliveryPending.To("made up") == nil {
		t.Error("an unknown state is allowed")
	}
	for _, jump := range [][2]EventState{{EventPending, EventCompleted}, {EventPending, EventProcessing}, {EventCompleted, EventPending},
		{EventRetry, EventCompleted}, {EventClaimed, EventDead}} {
		if jump[0].To(jump[1]) == nil {
			t.Errorf("an event jumps from %s to %s", jump[0], jump[1])
		}
	}
	for _, step := range [][2]EventState{{EventPending, EventClaimed}, {EventClaimed, EventProcessing}, {EventProcessing, EventCompleted},
		{EventProcessing, EventRetry}, {EventProcessing, EventDead}, {EventClaimed, EventPending}, {EventProcessing, EventPending}} {
		if err := step[0].To(step[1]); err != nil {
			t.Error(err)
		}
	}
}

func TestEventIsTheSumOfItsDeliveries(t *testing.T) {
	for _, c := range []struct {
		deliveries []DeliveryState
		claimed    bool
		want       EventState
	}{
		{nil, false, EventCompleted},
		{[]DeliveryState{DeliveryCompleted, DeliveryIgnored, DeliveryUnsupported}, false, EventCompleted},
		{[]DeliveryState{DeliveryCompleted, DeliveryDead}, false, EventDead},
		{[]DeliveryState{DeliveryDead, DeliveryParked}, false, EventPending},
		{[]DeliveryState{DeliveryCompleted, DeliveryPending}, false, EventPending},
		{[]DeliveryState{DeliveryCompleted, DeliveryPending}, true, EventClaimed},
		{[]DeliveryState{DeliveryRetry, DeliveryPending}, true, EventRetry},
		{[]DeliveryState{DeliveryRetry, DeliveryProcessing}, true, EventProcessing},
	} {
		if got := EventOf(c.deliveries, c.claimed); got != c.want {
			t.Errorf("%v, claimed %v: %s, want %s", c.deliveries, c.claimed, got, c.want)
		}
	}
}
