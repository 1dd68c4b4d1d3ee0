package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Promise: what belongs to the warm-up is not measured, but it is missed where it is lost.
func TestTheWarmUpIsNotMeasuredButCounts(t *testing.T) {
	s := newStopwatch(2, 3)
	for i := range 5 {
		key := fmt.Sprintf("%s%d", recordPrefix, i)
		s.commits[key] = time.Second
		if i != 1 && i != 3 { // one of each is lost
			s.starts[key] = time.Second + time.Duration(9-i)*time.Millisecond
		}
	}
	waits, lost := s.waits()
	if want := []time.Duration{5 * time.Millisecond, 7 * time.Millisecond}; !slices.Equal(waits, want) || lost != 2 {
		t.Errorf("measured %v, lost %d, want %v, 2", waits, lost, want)
	}
}
