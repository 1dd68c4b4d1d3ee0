package supervisor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// What runs is finished and counts; what has not begun goes back; nothing is
// charged; nothing is claimed any more.
func TestStopFinishesWhatRunsAndHandsBackTheRest(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 30, 2)
	begun, release := make(chan int64, 100), make(chan struct{})
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		begun <- w.Record
		<-release
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) { c.Consumers = map[string]Limits{"a": {MaxInFlight: 4}} })
	running := map[int64]bool{}
	for range 4 {
		running[receive(t, "handlers begin", begun)] = true
	}
	eventually(t, "the others are queued", func() bool { return w.Health().Consumers[0].Queued == len(records)-4 })
	stopped := make(chan Status)
	go func() { stopped <- w.stop(t) }()
	eventually(t, "stopping", func() bool { return w.Health().State == "stopping" })
	eventually(t, "the queue is empty", func() bool { return w.Health().Consumers[0].Queued == 0 })
	close(release)
	status := receive(t, "stopped", stopped)
	if status.Completed != 4 || status.Failed != 0 || len(status.StillRunning) != 0 || !status.Left {
		t.Errorf("status: %+v", status)
	}
	for _, id := range records {
		want := int64(0)
		if running[id] {
			want = 1
		}
		if !store.through([]int64{id}, want, a) {
			t.Errorf("record %d is not at %d", id, want)
		}
	}
	assertNothingHeldOrCharged(t, store, records)
}

// assertNothingHeldOrCharged claims every record as another worker: all can be
// had, none is a suspect.
func assertNothingHeldOrCharged(t *testing.T, store *twinStore, records []int64) {
	t.Helper()
	store.mu.Lock()
	defer store.mu.Unlock()
	store.twin.Now = store.clock.Now().Add(time.Hour)
	claims, _ := store.twin.Claim(core.ClaimRequest{Worker: store.twin.Join(), Limit: 1000, Unbounded: true})
	if len(claims) != len(records) {
		t.Errorf("%d of %d records can be claimed", len(claims), len(records))
	}
	for _, c := range claims {
		if c.Crashes != 0 {
			t.Errorf("record %d is charged a crash", c.Record)
		}
		l, ok := store.twin.Load(core.LoadRequest{Claim: c, Limit: 10})
		if !ok {
			t.Errorf("record %d cannot be loaded", c.Record)
		}
		for _, row := range l.Checkpoints {
			if row.Attempt != 0 {
				t.Errorf("record %d is charged an attempt: %+v", c.Record, row)
			}
		}
	}
}

// At the end of the grace the handlers' contexts end; an error after that is
// not charged.
func TestStopCancelsAtTheEndOfTheGrace(t *testing.T) {
	store := newTwinStore(t, real())
	store.consumer("a")
	records := store.records(t, 3, 1)
	begun := make(chan struct{}, 10)
	r := newRecorder(t, func(ctx context.Context, _ core.Work) error {
		begun <- struct{}{}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errGraceEnded) {
			t.Errorf("cause: %v", context.Cause(ctx))
		}
		return ctx.Err()
	})
	w := startWorker(t, store, r)
	for range 3 {
		receive(t, "handlers begin", begun)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // no grace at all
	status, err := w.Stop(ctx)
	if err != nil || len(status.StillRunning) != 0 || status.Failed != 0 {
		t.Errorf("status: %+v, %v", status, err)
	}
	assertNothingHeldOrCharged(t, store, records)
}

// A handler that ignores its context is reported, keeps its claim until the
// worker is gone, and charges nothing. A second Stop joins the first.
func TestStopReportsWhatStillRuns(t *testing.T) {
	store := newTwinStore(t, real())
	store.consumer("a")
	store.records(t, 1, 1)
	begun, release := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	r := newRecorder(t, func(context.Context, core.Work) error {
		close(begun)
		<-release
		close(ended)
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) { c.CancelWait = 10 * time.Millisecond; c.Grace = 10 * time.Millisecond })
	receive(t, "the handler begins", begun)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			status := w.stop(t)
			if len(status.StillRunning) != 1 || status.StillRunning[0].Name != "a" || status.StillRunning[0].Seq != 1 || !status.Left {
				t.Errorf("status: %+v", status)
			}
		})
	}
	group.Wait()
	if s := w.Health().State; s != "stopped" {
		t.Errorf("state: %s", s)
	}
	close(release)
	receive(t, "the handler's end", ended)
	if n := len(w.cfg.Pairs.Running()); n != 0 {
		eventually(t, "the pair is free", func() bool { return len(w.cfg.Pairs.Running()) == 0 })
	}
}

func TestStopBeforeStartAndStartAfterStop(t *testing.T) {
	store := newTwinStore(t, real())
	w := newWorker(t, store, newRecorder(t, nil))
	if _, err := w.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := w.Start(context.Background()); err == nil {
		t.Error("started after a stop")
	}
}

// Start gives up with its context, says what was in the way, and leaves nothing behind.
func TestStartGivesUpWithItsContext(t *testing.T) {
	store := newTwinStore(t, real())
	store.consumer("a")
	for _, method := range []string{"Registry", "Join"} {
		store.set(func() { store.fail[method] = 1 << 30 })
		w := newWorker(t, store, newRecorder(t, nil))
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- w.Start(ctx) }()
		before := store.get(func() int { return store.calls[method] })
		eventually(t, "it tries", func() bool { return store.get(func() int { return store.calls[method] }) > before+1 })
		cancel()
		err := receive(t, "start's end", result)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errDown) {
			t.Errorf("%s: %v", method, err)
		}
		store.set(func() { store.fail[method] = 0 })
	}
}

func TestStopAbortsAStart(t *testing.T) {
	store := newTwinStore(t, real())
	store.set(func() { store.down = true })
	w := newWorker(t, store, newRecorder(t, nil))
	result := make(chan error, 1)
	go func() { result <- w.Start(context.Background()) }()
	eventually(t, "it tries", func() bool { return store.get(func() int { return store.calls["Registry"] }) > 1 })
	w.stop(t)
	if err := receive(t, "start's end", result); !errors.Is(err, errStopped) {
		t.Errorf("start: %v", err)
	}
}
