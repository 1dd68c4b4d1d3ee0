package clock

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

// Rand draws random numbers from a seed, safe for concurrent use. Jitter and
// test schedules come from it, so that a run can be repeated from its seed.
// It is not for secrets.
type Rand struct {
	seed uint64

	mu  sync.Mutex
	src *rand.Rand
}

// NewRand makes a generator whose numbers follow from seed alone.
func NewRand(seed uint64) *Rand {
	return &Rand{seed: seed, src: rand.New(rand.NewPCG(seed, 0x6b65796c696e65))}
}

// RandomSeed draws a seed from the operating system.
func RandomSeed() uint64 {
	var b [8]byte
	// Read never fails: it ends the program where the system has no randomness.
	_, _ = crand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Seed is what NewRand was given.
func (r *Rand) Seed() uint64 { return r.seed }

// Float64 draws from [0, 1).
func (r *Rand) Float64() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.src.Float64()
}

// Int64N draws from [0, n). It panics if n <= 0.
func (r *Rand) Int64N(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.src.Int64N(n)
}

// IntN draws from [0, n). It panics if n <= 0.
func (r *Rand) IntN(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.src.IntN(n)
}
