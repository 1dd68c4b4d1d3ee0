package keylinetype

import (
	"testing"

	"github.com/google/uuid"
)

// Handlers have kept such ids in their tables: another release must not make others.
func TestADeterministicIDIsTheSameForEver(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0190163d-8694-739b-aea5-966c26f8ad90")
	d := Delivery{Event: Event{ID: id}, IdempotencyKey: id.String() + ":7", Attempt: 1, Token: 1}
	const want = "161fc4e2-2698-5ee5-b444-9f42238ecee0"
	if got := d.DeterministicID("row").String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	again := d
	again.Attempt, again.Token, again.Redelivered = 2, 9, true
	if got := again.DeterministicID("row").String(); got != want {
		t.Errorf("a redelivery gives %s, want %s", got, want)
	}
	other := d
	other.IdempotencyKey = id.String() + ":8"
	if other.DeterministicID("row") == d.DeterministicID("row") || d.DeterministicID("line") == d.DeterministicID("row") {
		t.Error("two rows, or two consumers, have one id")
	}
}
