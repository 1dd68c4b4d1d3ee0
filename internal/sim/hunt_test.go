package sim

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"github.com/keylinehq/keyline/internal/clock"
)

var (
	hunt      = flag.Int("sim.hunt", 0, "how many seeds to try for the shortest schedules that break a promise")
	huntFrom  = flag.Uint64("sim.from", 0, "the first of them")
	huntSteps = flag.Int("sim.steps", 200, "their longest schedule")
)

// TestHunt looks for the shortest failure of each kind: what rapid's shrinking
// cannot do for a schedule that follows from a seed. It does nothing unless asked.
func TestHunt(t *testing.T) {
	type kind struct {
		n, steps int
		seed     uint64
		text     string
	}
	kinds := map[string]*kind{}
	digits := regexp.MustCompile(`[0-9]+|0x[0-9a-f]+`)
	for seed := *huntFrom; seed < *huntFrom+uint64(*hunt); seed++ {
		rnd := clock.NewRand(seed)
		cfg := Draw(rnd)
		cfg.Steps = 10 + int(seed)%*huntSteps
		_, err := Run(cfg, rnd)
		if err == nil {
			continue
		}
		first, _, _ := strings.Cut(err.Error(), "\n")
		name := digits.ReplaceAllString(first, "#")
		if len(name) > 60 {
			name = name[:60]
		}
		k := kinds[name]
		if k == nil {
			k = &kind{steps: 1 << 30}
			kinds[name] = k
		}
		if k.n++; len(err.Error()) < k.steps {
			k.steps, k.seed, k.text = len(err.Error()), seed, err.Error()
		}
	}
	for name, k := range kinds {
		t.Errorf("%d times %s\nseed %d: %s\n", k.n, name, k.seed, k.text)
	}
}
