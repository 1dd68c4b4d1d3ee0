package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
)

// ofTerminal is a screen of w by h cells on which somebody types.
func ofTerminal(t *testing.T, w, h int) (s *screen, shown *bytes.Buffer, keys io.WriteCloser, undone *bool) {
	t.Helper()
	in, keys := io.Pipe()
	t.Cleanup(func() { _ = keys.Close() })
	shown, undone = &bytes.Buffer{}, new(bool)
	s = live(shown, in, func() (int, int) { return w, h }, func() { *undone = true })
	return s, shown, keys, undone
}

// Promise: on a terminal a frame covers the one before, fits, and what was there comes back.
func TestAFrameFitsTheTerminalAndCoversTheOneBefore(t *testing.T) {
	t.Parallel()
	s, shown, _, undone := ofTerminal(t, 10, 4)
	if shown.String() != enterPage {
		t.Errorf("it begins with %q", shown)
	}
	shown.Reset()
	if err := s.show("first\nsecond line that is too long\n≥3\nfour\nfive\n"); err != nil {
		t.Fatal(err)
	}
	if want := topLeft + "first" + restOfLine + "\r\nsecond lin" + restOfLine + "\r\n≥3" + restOfLine + "\r\n" + restOfPage; shown.String() != want {
		t.Errorf("shown %q, want %q", shown, want)
	}
	shown.Reset()
	s.close()
	if shown.String() != leavePage || !*undone {
		t.Errorf("it ends with %q, undone %v", shown, *undone)
	}
}

func TestKeysQuit(t *testing.T) {
	t.Parallel()
	for _, typed := range []string{"q", "xQ", "\x03"} {
		s, _, keys, _ := ofTerminal(t, 80, 24)
		go func() { _, _ = io.WriteString(keys, typed) }()
		select {
		case <-s.quit:
		case <-time.After(patience):
			t.Errorf("%q does not quit", typed)
		}
	}
}

func TestRatesAreSinceTheFrameBefore(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	c := topConsumer{ConsumerHealth: keyline.ConsumerHealth{Name: "c", Completed: 300, Failed: 5}}
	c.since(nil, at)
	if c.CompletedPerSecond != nil {
		t.Error("the first frame has a rate")
	}
	before := &topFrame{At: at.Add(-2 * time.Second), Consumers: []topConsumer{{ConsumerHealth: keyline.ConsumerHealth{Name: "b"}},
		{ConsumerHealth: keyline.ConsumerHealth{Name: "c", Completed: 100, Failed: 5}}}}
	c.since(before, at)
	if *c.CompletedPerSecond != 100 || *c.FailedPerSecond != 0 {
		t.Errorf("%v completed and %v failed a second", *c.CompletedPerSecond, *c.FailedPerSecond)
	}
}

func TestAFrameShowsWhatWaitsAndWhoseBreakerIsOpen(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { then := at.Add(-d); return &then }
	rate, worker := 12.6, int64(7)
	var b bytes.Buffer
	err := drawTop(&b, topFrame{At: at,
		Consumers: []topConsumer{{ConsumerHealth: keyline.ConsumerHealth{Name: "mailer", Status: "active", Workers: 2, Pending: 5000, OldestAt: ago(90 * time.Second), CountedAt: ago(time.Second)},
			CompletedPerSecond: &rate}},
		Workers: []keyline.WorkerView{{ID: 7, Name: "crm", Host: "h", Status: "live", Claims: 3, BeatAt: *ago(2 * time.Second),
			State: []byte(`{"consumers":[{"name":"mailer","breaker":"open","in_flight":2},{"name":"x","breaker":"closed","in_flight":1}]}`)}},
		Stuck: []keyline.StuckRecord{{Tenant: "acme", Record: "order:\x1b[2J1", Reason: "claimed", Since: ago(time.Hour), WorkerID: &worker, Worker: "crm"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mailer    active  2        ≥5000    1m30s   13", "crm#7   h     live    3       3        2s    mailer", `order:\x1b[2J1 of tenant acme  claimed  1h0m0s`, "crm#7\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") || strings.Contains(b.String(), " ! ") {
		t.Errorf("in\n%q", b.String())
	}
}

// Promise: a worker that is gone is not shown as one that works, though no other has found it lost.
func TestASilentWorkerIsSaidToBe(t *testing.T) {
	t.Parallel()
	gone := keyline.WorkerView{ID: 7, Name: "crm", Status: "live", Silent: true}
	if rows := workerRows([]keyline.WorkerView{gone}); rows[0][3] != "silent" {
		t.Errorf("%v", rows)
	}
	o := keyline.Overview{Workers: []keyline.WorkerView{gone}}
	o.Records.Due = 1
	said := strings.Join(problems(o), "; ")
	for _, want := range []string{"no worker lives", "crm#7 has been silent for longer than its lease"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in %q", want, said)
		}
	}
}

// Promise: a check fails while what a lost worker held is not free, and not for that it was lost.
func TestALostWorkerIsAProblemWhileItHoldsClaims(t *testing.T) {
	t.Parallel()
	lost := keyline.WorkerView{ID: 7, Name: "crm", Status: "lost"}
	other := keyline.WorkerView{ID: 8, Name: "crm", Status: "live", Claims: 3}
	holding, left := lost, lost
	holding.Claims = 2
	left.Status, left.Claims = "left", 1
	hosted := keyline.ConsumerView{Name: "mailer", Status: "active", HostedBy: []string{"crm#8"}}
	orphan := keyline.ConsumerView{Name: "mailer", Status: "active"}
	for _, tc := range []struct {
		name     string
		workers  []keyline.WorkerView
		consumer keyline.ConsumerView
		claimed  int64
		want     string // begins the one problem; "": there is none
	}{
		{"it was replaced", []keyline.WorkerView{lost, other}, hosted, 3, ""},
		{"nobody replaced it, and nothing waits", []keyline.WorkerView{lost}, orphan, 0, ""},
		{"nobody replaced it, and something waits", []keyline.WorkerView{lost}, orphan, 1, "records have work and no worker lives"},
		{"what it held is not free", []keyline.WorkerView{holding, other}, hosted, 5, "worker crm#7 has been lost, and 2 records that it claimed"},
		{"what one held that left is not free", []keyline.WorkerView{left, other}, hosted, 4, "worker crm#7 has left, and 1 records that it claimed"},
		{"the others do not run its consumer", []keyline.WorkerView{lost, other}, orphan, 3, "consumer mailer is active and no live worker runs it"},
	} {
		o := keyline.Overview{Workers: tc.workers, Consumers: []keyline.ConsumerView{tc.consumer}}
		o.Records.Claimed = tc.claimed
		got := problems(o)
		if tc.want == "" && len(got) != 0 || tc.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.want)) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// Promise: figures that nobody keeps any more say so.
func TestCountsThatStandStillAreSaidToBeOld(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { then := at.Add(-d); return &then }
	for want, list := range map[string][]keyline.ConsumerHealth{
		"":                                 {{Status: "active", CountedAt: ago(20 * time.Second)}, {Status: "active"}, {Status: "retired"}},
		"no worker has counted what waits": {{Status: "active"}},
		"what waits was last counted 2m0s ago: no worker runs": {{Status: "active", CountedAt: ago(2 * time.Minute)}, {Status: "paused", CountedAt: ago(3 * time.Minute)}},
	} {
		if got := staleness(at, list); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := staleness(at, []keyline.ConsumerHealth{{Status: "retired"}}); got != "" {
		t.Errorf("%q", got)
	}
}
