package recorder_test

import (
	"testing"
	"time"

	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/examples/crm/recorder"
)

// Promise: a repeated delivery is explained by what happened to its workers
// between its runs, and by nothing else.
func TestARepetitionNeedsAReason(t *testing.T) {
	t.Parallel()
	const again = "1b1 1d1 2b1 2d1 b2 d2"
	for name, tc := range map[string]struct {
		story string
		// worker is a worker that ended so many leases after the first run, with that status.
		worker, status string
		leases         float64
		outage         float64 // so many leases after the first run; 0: none
		want           int
	}{
		"once":                            {story: "b1 d1 b2 d2"},
		"a failed run before":             {story: "1b1 2b1 2d1"},
		"nothing had happened":            {story: again, want: 1},
		"twice more":                      {story: "1b1 1d1 2b1 2d1 3b1 3d1", want: 2},
		"the worker was lost":             {story: again, worker: "w", status: "lost", leases: 0.5},
		"another worker was lost":         {story: again, worker: "v", status: "lost", leases: 0.5, want: 1},
		"it was lost later":               {story: again, worker: "w", status: "lost", leases: 3, want: 1},
		"it was lost long before":         {story: again, worker: "w", status: "lost", leases: -5, want: 1},
		"it was cut off":                  {story: again, worker: "w", status: "left", leases: 1.5},
		"another was cut off":             {story: again, worker: "v", status: "left", leases: 1.5, want: 1},
		"there was an outage":             {story: again, outage: 0.5},
		"the outage was before":           {story: again, outage: -0.5, want: 1},
		"the outage was later":            {story: again, outage: 1.5, want: 1},
		"an outage explains no first run": {story: "b1 d1", outage: 0.5},
		"a batch":                         {story: "1b1,2 1d1,2 2b1,2 2d1,2", want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, activity := stream(t)
			mark(t, a, activity, "timeline", tc.story)
			// The runs of a delivery lie one lease, an hour, apart.
			a.Exec(`update crm.delivered_log l set at = now() - interval '100 hours' + (
				select count(distinct b.run) from crm.delivered_log b where b.mark = 'begin' and b.seq = l.seq and b.id < l.id and b.run <> l.run) * interval '1 hour'`)
			if tc.worker != "" {
				a.Exec(`insert into keyline.workers (name, instance, host, pid, lease, status, ended_at)
					values ($1, gen_random_uuid(), 'h', 1, interval '1 hour', $2, now() - interval '100 hours' + $3::float8 * interval '1 hour')`,
					tc.worker, tc.status, tc.leases)
			}
			var outages []recorder.Outage
			if tc.outage != 0 {
				from := crmtest.Get[time.Time](a, "select now() - interval '100 hours' + $1::float8 * interval '1 hour'", tc.outage)
				outages = []recorder.Outage{{From: from, To: from.Add(time.Minute)}}
			}
			list, err := recorder.Unexplained(t.Context(), a.Pool, outages)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) != tc.want {
				t.Errorf("%d repetitions without a reason, not %d: %v", len(list), tc.want, list)
			}
		})
	}
}
