package supervisor

import (
	"context"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
)

func TestMemDump(t *testing.T) {
	const records = 2000
	runtime.MemProfileRate = 512
	store := newInstantStore(records, 2)
	go store.commit()
	release, begun := make(chan struct{}), make(chan struct{}, 2*records)
	s, _ := New(Config{Deliveries: store, Leases: quietLeases{}, Wakes: &oneWake{}, MaxInFlight: 1, MaxBatch: records,
		Runner: blockingRunner{begun, release}})
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	for s.Health().Resident < records || queued(s) < 2*records-1 {
		runtime.Gosched()
	}
	runtime.GC()
	runtime.GC()
	f, _ := os.Create("/tmp/heap.prof")
	pprof.Lookup("heap").WriteTo(f, 0)
	f.Close()
	close(release)
	<-store.done
	s.Stop(context.Background())
	close(store.flushes)
}
