package listener

import (
	"strings"
	"testing"

	"github.com/keylinehq/keyline/internal/clock"
)

// TestTwinNoticesEveryMutant: each rule of the sleep protocol is broken on its
// own, and some schedule must lose a wake-up by it. A property that passes
// without a rule says nothing about it.
func TestTwinNoticesEveryMutant(t *testing.T) {
	const most = 20000
	for name, m := range map[string]struct {
		why    string
		breaks func(*twin)
	}{
		"no claim after the grant":          {"who decided before it that nobody sleeps told nobody", func(s *twin) { s.drop = Granted }},
		"notifications are not answered":    {"who found somebody asleep told nobody else", func(s *twin) { s.drop = Notified }},
		"no claim after LISTEN is back":     {"what was sent meanwhile is not sent again", func(s *twin) { s.drop = Reconnected }},
		"due times are forgotten":           {"nobody notifies when a retry falls due", func(s *twin) { s.drop = Due }},
		"no look behind a long transaction": {"its shared lock keeps the sleep lock from everybody", func(s *twin) { s.drop = CatchUp }},
		"a call hides what came with it":    {"it speaks of its records, and of nothing else", func(s *twin) { s.callsHide = true }},
		"an appender keeps no lock":         {"the grant is to come after its commit", func(s *twin) { s.unshared = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(most) {
				rnd := clock.NewRand(seed)
				s := drawTwin(rnd)
				m.breaks(s)
				schedule := anyRounds
				if seed%2 == 0 {
					schedule = besideAnOpenOne
				}
				if err := schedule(rnd, s); err != nil {
					what, _, _ := strings.Cut(err.Error(), ":")
					t.Logf("seed %d: %s", seed, what)
					return
				}
			}
			t.Errorf("%d schedules, and nobody noticed: %s", most, m.why)
		})
	}
}
