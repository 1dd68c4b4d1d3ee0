package sim

import (
	"hash/fnv"
	"testing"

	"github.com/keylinehq/keyline/internal/clock"
)

// read makes choices of bytes, and when they are used up of what follows from them.
type read struct {
	from []byte
	then *clock.Rand
}

func (r *read) next() (byte, bool) {
	if len(r.from) == 0 {
		return 0, false
	}
	b := r.from[0]
	r.from = r.from[1:]
	return b, true
}

func (r *read) IntN(n int) int {
	b, ok := r.next()
	if !ok {
		return r.then.IntN(n)
	}
	if n <= 256 {
		return int(b) % n
	}
	low, _ := r.next()
	return (int(b)<<8 | int(low)) % n
}

func (r *read) Float64() float64 {
	if b, ok := r.next(); ok {
		return float64(b) / 256
	}
	return r.then.Float64()
}

// FuzzSchedule: bytes are a schedule of messages to record machines, with all
// that may come between them; whatever it is, no promise is broken.
func FuzzSchedule(f *testing.F) {
	for seed := range uint64(8) {
		rnd := clock.NewRand(seed)
		bytes := make([]byte, 40<<(seed%4))
		for i := range bytes {
			bytes[i] = byte(rnd.IntN(256))
		}
		f.Add(bytes)
	}
	f.Fuzz(func(t *testing.T, schedule []byte) {
		sum := fnv.New64()
		_, _ = sum.Write(schedule)
		ch := &read{from: schedule, then: clock.NewRand(sum.Sum64())}
		cfg := Draw(ch)
		cfg.Steps = 10 + min(len(schedule)/2, 300)
		if _, err := Run(cfg, ch); err != nil {
			t.Errorf("%v\nconfig %+v", err, cfg)
		}
	})
}
