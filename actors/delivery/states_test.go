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
}
