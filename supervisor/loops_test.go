package supervisor

import (
	"testing"
	"time"
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
			store.set(func() { store.fail[fault.method] = 2 })
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
