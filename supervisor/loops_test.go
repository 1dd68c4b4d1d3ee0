package supervisor

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/internal/core"
)

// FAULTS 36: each background loop fails at start; each is retried alone, shows
// in health meanwhile, and the work is done.
func TestEveryLoopIsRetriedAlone(t *testing.T) {
	const often, seldom = 3 * time.Second, time.Second // leases
	for _, fault := range []struct {
		method, loop string
		lease        time.Duration
	}{
		{"Claim", "claims", often}, {"NextDue", "claims", often}, {"Load", "loads", often}, {"News", "news", seldom},
		{"Renew", "lease", often},
		{"Beats", "observer", seldom}, {"Recover", "observer", seldom}, {"HandBackOrphans", "orphans", seldom},
	} {
		t.Run(fault.method, func(t *testing.T) {
			store := newTwinStore(t, real())
			a := store.consumer("a")
			records := store.records(t, 3, 1)
			held := store.records(t, 1, 1)[0] // by a lost worker, so that recovery is called
			store.set(func() {
				store.fail[fault.method] = 2
				lost := store.twin.Join()
				store.twin.Claim(core.ClaimRequest{Worker: lost, Record: held, Limit: 1})
				store.twin.MarkLost(lost)
			})
			w := startWorker(t, store, newRecorder(t, nil), func(c *Config) { c.Lease = fault.lease })
			loop := func() LoopHealth {
				for _, l := range w.Health().Loops {
					if l.Name == fault.loop {
						return l
					}
				}
				t.Fatalf("no loop %s", fault.loop)
				return LoopHealth{}
			}
			eventually(t, "it shows", func() bool { return loop().Failures >= 2 })
			for _, l := range w.Health().Loops {
				if l.Name != fault.loop && l.Failures > 0 {
					t.Errorf("%s has failed too: %s", l.Name, l.Error)
				}
			}
			eventually(t, "it works again", func() bool { return loop().OK })
			eventually(t, "delivered", func() bool { return store.through(records, 1, a) })
			if w.Health().Fenced != 0 {
				t.Error("the worker was fenced")
			}
		})
	}
}

// What is published in the workers table says how each consumer's breaker
// stands, and holds no payloads.
func TestThePublishedStateShowsTheBreakers(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 1, 1)
	w := startWorker(t, store, newRecorder(t, nil))
	eventually(t, "delivered", func() bool { return store.through(records, 1, a) })
	w.idle(t)
	w.tripBreaker(&actors.Escalation{Consumer: w.registry.Load().Consumer(a), Err: errDown})
	var got struct {
		State     string
		Consumers []ConsumerHealth
	}
	if err := json.Unmarshal(w.published(), &got); err != nil {
		t.Fatal(err)
	}
	if got.State != "running" || len(got.Consumers) != 1 || got.Consumers[0].Name != "a" || got.Consumers[0].Breaker != BreakerOpen {
		t.Errorf("published: %s", w.published())
	}
}

func TestConfigNamesTheFieldThatIsWrong(t *testing.T) {
	store := newTwinStore(t, real())
	good := newWorker(t, store, newRecorder(t, nil)).cfg
	for field, spoil := range map[string]func(*Config){
		"Deliveries": func(c *Config) { c.Deliveries = nil }, "Leases": func(c *Config) { c.Leases = nil },
		"Wakes": func(c *Config) { c.Wakes = nil }, "Runner": func(c *Config) { c.Runner = nil },
		"MaxResident": func(c *Config) { c.MaxResident = -1 }, "MaxBatch": func(c *Config) { c.MaxBatch = -1 },
		"MaxInFlight": func(c *Config) { c.MaxInFlight = -1 }, "LoadLimit": func(c *Config) { c.LoadLimit = -1 },
		"Lease": func(c *Config) { c.Lease = -1 }, "Renew": func(c *Config) { c.Renew = c.Lease },
		"StaleGrace": func(c *Config) { c.StaleGrace = -1 }, "Grace": func(c *Config) { c.Grace = -1 },
		"CancelWait": func(c *Config) { c.CancelWait = -1 }, "SuspectYield": func(c *Config) { c.SuspectYield = -1 },
		"FlushDelay": func(c *Config) { c.FlushDelay = -1 }, "NewsEvery": func(c *Config) { c.NewsEvery = -1 },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
