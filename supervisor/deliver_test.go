package supervisor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

func TestEveryEventReachesEveryConsumerInOrder(t *testing.T) {
	store := newTwinStore(t, real())
	a, b, c := store.consumer("a"), store.consumer("b"), store.consumer("c")
	records := store.records(t, 300, 3)
	r := newRecorder(t, nil)
	w := startWorker(t, store, r)
	eventually(t, "all delivered", func() bool { return store.through(records, 3, a, b, c) })
	w.idle(t)
	for _, id := range records {
		for _, name := range []string{"a", "b", "c"} {
			if got := r.got(id, name); !slices.Equal(got, []int64{1, 2, 3}) {
				t.Fatalf("record %d, consumer %s: %v", id, name, got)
			}
		}
	}
	if h := w.Health(); h.Settled != 300 || h.Resident != 0 || !h.Healthy() {
		t.Errorf("health: %+v", h)
	}
}

// Seats are used again, with their consumer actors; one per record would be 400.
func TestSettledSeatsAreHandedTheNextRecord(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 400, 1)
	w := startWorker(t, store, newRecorder(t, nil), func(c *Config) { c.MaxResident = 10 })
	eventually(t, "all delivered", func() bool { return store.through(records, 1, a) })
	w.idle(t)
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if n := len(w.table.places); n > 11 {
		t.Errorf("%d seats for at most 10 records at a time", n)
	}
}

// A seat whose actor has ended while it was free is not handed a record, which
// nobody would then process.
func TestAFreeSeatWithoutAnActorIsNotUsed(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 3, 1)
	w := startWorker(t, store, newRecorder(t, nil))
	eventually(t, "all delivered", func() bool { return store.through(records, 1, a) })
	w.idle(t)
	for p := range w.places() {
		w.system.Root.Stop(p.seat.PID())
	}
	eventually(t, "they are forgotten", func() bool { return len(w.places()) == 0 })
	for _, id := range records {
		store.append(t, id, 1)
	}
	w.wakes.notify()
	eventually(t, "the next events", func() bool { return store.through(records, 2, a) })
}

func TestABlockedHandlerOccupiesOnlyItsOwnRecordAndConsumer(t *testing.T) {
	store := newTwinStore(t, real())
	slow, quick := store.consumer("slow"), store.consumer("quick")
	records := store.records(t, 20, 2)
	blocked, release := make(chan struct{}), make(chan struct{})
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		if w.Record == records[0] && w.Consumer.ID == slow && w.Events[0].Seq == 1 {
			close(blocked)
			<-release
		}
		return nil
	})
	startWorker(t, store, r)
	receive(t, "the handler is blocked", blocked)
	eventually(t, "other records", func() bool { return store.through(records[1:], 2, slow, quick) })
	eventually(t, "the record's other consumer", func() bool { return store.through(records[:1], 2, quick) })
	if got := r.got(records[0], "slow"); len(got) != 0 {
		t.Errorf("overtaken: %v", got)
	}
	close(release)
	eventually(t, "the blocked one", func() bool { return store.through(records, 2, slow, quick) })
}

// FAULTS 41: a sibling consumer is idle while another's handler runs for long;
// it hears of new events without any wake.
func TestAnIdleSiblingHearsOfNewEvents(t *testing.T) {
	store := newTwinStore(t, real())
	slow, quick := store.consumer("slow"), store.consumer("quick")
	records := store.records(t, 1, 1)
	blocked, release := make(chan struct{}), make(chan struct{})
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		if w.Consumer.ID == slow && w.Events[0].Seq == 1 {
			close(blocked)
			<-release
		}
		return nil
	})
	startWorker(t, store, r)
	receive(t, "the handler is blocked", blocked)
	eventually(t, "the first event", func() bool { return store.through(records, 1, quick) })
	store.append(t, records[0], 2)
	eventually(t, "the sibling's news", func() bool { return store.through(records, 3, quick) })
	close(release)
	eventually(t, "the rest", func() bool { return store.through(records, 3, slow, quick) })
}

// The registry moves while a record is resident: a consumer that is new then is
// served by the same claim.
func TestResidentRecordsLearnOfTheRegistry(t *testing.T) {
	store := newTwinStore(t, real())
	first := store.consumer("first")
	records := store.records(t, 1, 1)
	blocked, release := make(chan struct{}), make(chan struct{})
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		if w.Consumer.ID == first && w.Events[0].Seq == 1 {
			close(blocked)
			<-release
		}
		return nil
	})
	w := startWorker(t, store, r)
	receive(t, "the handler is blocked", blocked)
	late := store.consumer("late")
	store.append(t, records[0], 1)
	eventually(t, "the new consumer's events", func() bool { return slices.Equal(r.got(records[0], "late"), []int64{1, 2}) })
	close(release)
	eventually(t, "the rest", func() bool { return store.through(records, 2, first, late) })
	if w.registry.Load().Consumer(late) == nil {
		t.Error("the worker's registry is the old one")
	}
}

// No fallback poll and no foreign wake: the worker's own hand-back shortens its
// sleep to the retry's due time.
func TestOwnHandBacksWakeTheWorker(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a", func(c *core.Consumer) { c.Retry.Delays = []time.Duration{10 * time.Millisecond} })
	records := store.records(t, 5, 1)
	var failed sync.Map
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		if _, again := failed.LoadOrStore(w.Record, true); !again {
			return errors.New("once")
		}
		return nil
	})
	startWorker(t, store, r)
	eventually(t, "the retries", func() bool { return store.through(records, 1, a) })
}

func TestANotifiedRecordIsClaimed(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 1, 1)
	w := startWorker(t, store, newRecorder(t, nil))
	w.idle(t)
	store.append(t, records[0], 1)
	w.wakes.notify(records[0])
	eventually(t, "the notified record", func() bool { return store.through(records, 2, a) })
	if n := w.Health().Wakes["notified"]; n != 1 {
		t.Errorf("wakes counted: %d", n)
	}
}

func TestDryIsSaidOnlyAfterALookAtEverything(t *testing.T) {
	store := newTwinStore(t, real())
	store.consumer("a")
	w := startWorker(t, store, newRecorder(t, nil))
	receive(t, "dry", w.wakes.dry)
	w.idle(t)
}

// A panicking handler, an erring one and one that gives up: the events behind
// them are delivered, whatever became of the actor.
func TestFailuresDoNotStopARecord(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a", func(c *core.Consumer) {
		c.Retry.Delays = []time.Duration{time.Millisecond, time.Millisecond}
	})
	records := store.records(t, 4, 5)
	var panics, errs atomic.Int64
	r := newRecorder(t, func(_ context.Context, w core.Work) error {
		switch w.Events[0].Seq {
		case 2:
			if panics.Add(1); w.Attempt == 1 {
				panic("boom")
			}
		case 3:
			if errs.Add(1); w.Attempt < 3 {
				return errors.New("twice")
			}
		case 4:
			return keylinetype.Permanent(errors.New("never"))
		}
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) {
		c.Consumers = map[string]Limits{"a": {Breaker: keylinetype.Breaker{Disabled: true}}}
	})
	eventually(t, "all delivered", func() bool { return store.through(records, 5, a) })
	w.idle(t)
	for _, id := range records {
		if got := r.got(id, "a"); !slices.Equal(got, []int64{1, 2, 3, 5}) {
			t.Errorf("record %d: %v", id, got)
		}
	}
	if p, e := panics.Load(), errs.Load(); p != 8 || e != 12 {
		t.Errorf("runs of the panicking event: %d, of the erring one: %d", p, e)
	}
	if c := w.Health().Consumers[0]; c.Failed != 4+8+4 || c.Completed != 16 {
		t.Errorf("counted: %+v", c)
	}
}
