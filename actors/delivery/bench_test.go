package delivery

import (
	"strconv"
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

// BenchmarkRecord is a fresh record with one event: load, deliver, settle.
func BenchmarkRecord(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(strconv.Itoa(n)+"consumers", func(b *testing.B) {
			var consumers []*core.Consumer
			for id := range n {
				consumers = append(consumers, consumer(int32(id+1)))
			}
			reg, l := registry(consumers...), loaded(1, 0)
			m := &Machine{}
			works := make([]*core.Work, 0, n)
			b.ReportAllocs()
			for b.Loop() {
				works = works[:0]
				for _, e := range m.Reset(reg, l, Options{Now: begin}) {
					works = append(works, e.(Start).Work)
				}
				for i := range works {
					m.Step(begin, &Ended{works[i], core.Outcome{}})
				}
				m.Step(begin, &Flushed{core.FlushResult{Status: core.FlushGone}})
			}
		})
	}
}

// BenchmarkReload is a resident record that is read again, as all are when the registry has changed.
func BenchmarkReload(b *testing.B) {
	for _, n := range []int{4, 100, 1000} {
		b.Run(strconv.Itoa(n)+"consumers", func(b *testing.B) {
			var consumers []*core.Consumer
			for id := range n {
				consumers = append(consumers, consumer(int32(id+1)))
			}
			reg, l := registry(consumers...), loaded(1, 0)
			m, _ := New(reg, l, Options{Now: begin})
			b.ReportAllocs()
			for b.Loop() {
				m.Step(begin, Reloaded{reg, l})
			}
		})
	}
}
