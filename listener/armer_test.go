package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// fakeArming hands every call to the test and waits for its answer: it is the
// test that decides what a session does and when.
type fakeArming struct{ calls chan armingCall }

type armingCall struct {
	name   string
	ctx    context.Context
	answer chan error
}

func (f *fakeArming) call(ctx context.Context, name string) error {
	c := armingCall{name, ctx, make(chan error, 1)}
	f.calls <- c
	return <-c.answer
}

func (f *fakeArming) Elect(ctx context.Context) error   { return f.call(ctx, "elect") }
func (f *fakeArming) Request(ctx context.Context) error { return f.call(ctx, "request") }
func (f *fakeArming) Release(ctx context.Context) error { return f.call(ctx, "release") }
func (f *fakeArming) Ping(ctx context.Context) (bool, error) {
	err := f.call(ctx, "ping")
	if errors.Is(err, errCrowd) {
		return true, nil
	}
	return false, err
}

// errCrowd answers a ping: it is alive, and callers stand in line.
var errCrowd = errors.New("crowded")

func (f *fakeArming) Close() { f.calls <- armingCall{name: "close"} }

// armerRig runs an armer on a fake session and a fake clock.
type armerRig struct {
	t       *testing.T
	armer   *armer
	session *fakeArming
	clock   *clock.Fake
	reports chan string
	stop    context.CancelFunc
	done    chan struct{}
}

func newArmerRig(t *testing.T) *armerRig {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &armerRig{
		t: t, session: &fakeArming{calls: make(chan armingCall)}, clock: clock.NewFake(time.Unix(0, 0)),
		reports: make(chan string, 10), stop: stop, done: make(chan struct{}),
	}
	r.armer = newArmer(r.session, r.clock, slog.New(slog.DiscardHandler))
	report := func(what string) func(int64) {
		return func(term int64) { r.reports <- fmt.Sprintf("%s %d", what, term) }
	}
	r.armer.elected, r.armer.granted, r.armer.lost = report("elected"), report("granted"), report("lost")
	r.armer.crowded = report("crowded")
	go func() {
		defer close(r.done)
		r.armer.run(ctx)
	}()
	return r
}

// expect waits for the next call, which must be this one.
func (r *armerRig) expect(name string) armingCall {
	r.t.Helper()
	c := <-r.session.calls
	if c.name != name {
		r.t.Fatalf("the session was asked to %s, want %s", c.name, name)
	}
	return c
}

// answers expects calls that succeed, in this order.
func (r *armerRig) answers(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.expect(name).answer <- nil
	}
}

func (r *armerRig) reported(want string) {
	r.t.Helper()
	if got := <-r.reports; got != want {
		r.t.Fatalf("reported %q, want %q", got, want)
	}
}

// backoff lets the pause after a failure pass.
func (r *armerRig) backoff() {
	r.t.Helper()
	if err := r.clock.BlockUntil(r.t.Context(), 1); err != nil {
		r.t.Fatal(err)
	}
	r.clock.Advance(retryMax)
}

// end stops the armer; owing says whether it must release first.
func (r *armerRig) end(owing bool) {
	r.t.Helper()
	r.stop()
	if owing {
		r.answers("release")
	}
	r.expect("close")
	<-r.done
	select {
	case got := <-r.reports:
		r.t.Fatalf("reported %q besides", got)
	default:
	}
}

// Promise: the session is there before it is needed: until it has been elected, appenders wake nobody, and to connect takes
// long just when many others do. Where it cannot connect, that holds up nothing.
func TestArmerConnectsBeforeItIsAsked(t *testing.T) {
	for name, first := range map[string]error{"it can": nil, "it cannot": errors.New("refused")} {
		t.Run(name, func(t *testing.T) {
			r := newArmerRig(t)
			r.expect("release").answer <- first
			r.armer.arm(1)
			if first != nil {
				r.answers("release") // at once, without a pause
			}
			r.answers("elect")
			r.reported("elected 1")
			r.answers("request")
			r.reported("granted 1")
			r.end(true)
		})
	}
}

func TestArmerGoesThroughACycleAndReleasesWhenDisarmed(t *testing.T) {
	r := newArmerRig(t)
	r.armer.arm(1)
	r.answers("release", "elect")
	r.reported("elected 1")
	r.answers("request")
	r.reported("granted 1")
	r.armer.arm(0)
	r.answers("release")
	// Released and clean: the next cycle asks at once.
	r.armer.arm(2)
	r.answers("elect")
	r.reported("elected 2")
	r.answers("request")
	r.reported("granted 2")
	r.end(true)
}

// A cancelled request may be granted all the same. Release must follow every
// cancel, and be repeated until it succeeds.
func TestArmerReleasesAfterACancelledRequestUntilItSucceeds(t *testing.T) {
	for name, outcome := range map[string]error{"granted all the same": nil, "cancelled": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			r := newArmerRig(t)
			r.armer.arm(1)
			r.answers("release", "elect")
			r.reported("elected 1")
			request := r.expect("request")
			r.armer.arm(0)
			<-request.ctx.Done()
			request.answer <- outcome
			if outcome == nil {
				r.reported("granted 1") // for the policy to ignore: it has no such term any more
			}
			r.expect("release").answer <- errors.New("connection reset")
			r.backoff()
			r.expect("release").answer <- errors.New("connection refused")
			r.backoff()
			r.answers("release")
			r.end(false)
		})
	}
}

func TestArmerBreaksOffAnElectionForANewTerm(t *testing.T) {
	r := newArmerRig(t)
	r.armer.arm(1)
	r.answers("release")
	elect := r.expect("elect")
	r.armer.arm(2)
	<-elect.ctx.Done()
	elect.answer <- elect.ctx.Err()
	r.answers("release", "elect")
	r.reported("elected 2")
	r.answers("request")
	r.reported("granted 2")
	r.end(true)
}

func TestArmerReportsALostSessionAndBeginsAgain(t *testing.T) {
	r := newArmerRig(t)
	r.armer.arm(1)
	r.answers("release", "elect")
	r.reported("elected 1")
	r.expect("request").answer <- errors.New("terminated")
	r.reported("lost 1")
	r.armer.arm(2) // the policy's answer
	r.backoff()
	r.answers("release", "elect")
	r.reported("elected 2")
	r.answers("request")
	r.reported("granted 2")

	r.armer.check()
	r.answers("ping")
	r.armer.check()
	r.expect("ping").answer <- errors.New("terminated")
	r.reported("lost 2")
	r.armer.arm(3)
	r.backoff()
	r.answers("release")
	r.expect("elect").answer <- errors.New("terminated")
	r.reported("lost 3")
	r.armer.arm(0)
	r.backoff()
	r.answers("release")
	r.end(false)
}

func TestArmerDoesNotPingWhatItDoesNotHold(t *testing.T) {
	r := newArmerRig(t)
	r.armer.arm(1)
	release := r.expect("release")
	r.armer.check() // stale by the time it could be done
	r.armer.arm(0)
	release.answer <- nil
	r.armer.check()
	r.armer.arm(2)
	r.answers("elect") // and no ping before
	r.reported("elected 2")
	r.answers("request")
	r.reported("granted 2")
	r.end(true)
}

func TestArmerReportsACrowd(t *testing.T) {
	r := newArmerRig(t)
	r.armer.arm(1)
	r.answers("release", "elect")
	r.reported("elected 1")
	r.answers("request")
	r.reported("granted 1")
	r.armer.check()
	r.expect("ping").answer <- errCrowd
	r.reported("crowded 1")
	r.armer.check()
	r.answers("ping") // it holds the lock as before
	r.end(true)
}

func TestArmerStopsOutOfABlockedRequest(t *testing.T) {
	r := newArmerRig(t)
	r.armer.arm(1)
	r.answers("release", "elect")
	r.reported("elected 1")
	request := r.expect("request")
	r.stop()
	<-request.ctx.Done()
	request.answer <- request.ctx.Err()
	release := r.expect("release")
	if err := release.ctx.Err(); err != nil {
		t.Errorf("the last release has no time: %v", err)
	}
	release.answer <- errors.New("too late")
	r.expect("close")
	<-r.done
}
