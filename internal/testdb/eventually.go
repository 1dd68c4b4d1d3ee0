package testdb

import (
	"context"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// patience is how long Eventually waits: far longer than anything takes, for a
// loaded machine is not a failure.
const patience = 60 * time.Second

// Eventually polls cond until it holds, and fails the test if it does not
// within a minute. It is for what sends no signal that could be waited for. The
// message says what was waited for, and is formatted with args. To be called on
// the test's goroutine.
func Eventually(t testing.TB, cond func() bool, msg string, args ...any) {
	t.Helper()
	eventually(t, clock.Real(), patience, cond, msg, args...)
}

func eventually(t testing.TB, clk clock.Clock, limit time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	end := clk.Mono() + limit
	for wait := time.Millisecond; !cond(); wait = min(2*wait, 20*time.Millisecond) {
		if clk.Mono() >= end {
			t.Fatalf("waited %v in vain: "+msg, append([]any{limit}, args...)...)
		}
		if err := clock.Sleep(context.WithoutCancel(t.Context()), clk, wait); err != nil {
			t.Fatal(err)
		}
	}
}
