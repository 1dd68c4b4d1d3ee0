package keylinetype_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/keylinehq/keyline/keylinetype"
)

// A handler may ask for a time that no due time can hold: time.Until of the year 9999 is as much as a duration can be.
func TestDelaysAreBounded(t *testing.T) {
	t.Parallel()
	const tenYears = 3650 * 24 * time.Hour
	for delay, want := range map[time.Duration]time.Duration{-1: 0, 0: 0, time.Hour: time.Hour, tenYears: tenYears, tenYears + 1: tenYears, math.MaxInt64: tenYears} {
		for what, err := range map[string]error{"Snooze": keylinetype.Snooze(delay), "RetryAfter": keylinetype.RetryAfter(errors.New("no"), delay)} {
			if _, got, _ := keylinetype.Judge(err); got != want {
				t.Errorf("%s(%s) is of %s, want %s", what, delay, got, want)
			}
		}
	}
}
