package demo

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/keylinehq/keyline"
)

// spotlights are how many records are followed event by event.
const spotlights = 3

// show tells what goes on, in lines.
type show struct {
	w       io.Writer
	elapsed func() time.Duration

	mu       sync.Mutex
	followed map[keyline.Key]int // and which spotlight it is in
	over     map[keyline.Key]bool
}

func newShow(w io.Writer, elapsed func() time.Duration) *show {
	return &show{w: w, elapsed: elapsed, followed: map[keyline.Key]int{}, over: map[keyline.Key]bool{}}
}

func (s *show) silent() bool { return s.w == io.Discard }

var (
	bold  = lipgloss.NewStyle().Bold(true)
	faint = lipgloss.NewStyle().Faint(true)
	good  = lipgloss.NewStyle().Foreground(lipgloss.Green).Bold(true)
	bad   = lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true)
	warn  = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	// colours tell the followed records apart.
	colours = []lipgloss.Style{
		lipgloss.NewStyle().Foreground(lipgloss.Cyan), lipgloss.NewStyle().Foreground(lipgloss.Magenta), lipgloss.NewStyle().Foreground(lipgloss.Blue),
	}
)

// line writes one line, with the time in front. A show that cannot be seen is
// no reason to fail.
func (s *show) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(text)
}

func (s *show) write(text string) {
	_, _ = lipgloss.Fprintln(s.w, faint.Render(fmt.Sprintf("%5.1fs", s.elapsed().Seconds()))+"  "+text)
}

func (s *show) say(format string, args ...any) { s.line(fmt.Sprintf(format, args...)) }

func (s *show) event(format string, args ...any) {
	s.line(good.Render("✔ " + fmt.Sprintf(format, args...)))
}

func (s *show) opening(cfg Config) {
	var delays []string
	for _, d := range retryDelays() {
		delays = append(delays, d.String())
	}
	text := []string{
		bold.Render("Keyline: events in order per record, to every consumer, through a kill -9"),
		fmt.Sprintf("%d worker processes, a CRM's traffic for %s, four consumers. Seed %d.", cfg.Workers, cfg.Duration, cfg.Seed),
		faint.Render(fmt.Sprintf("For the show, a worker's silence is believed for %s (default %s), and a failed run is repeated after %s\n"+
			"(default 1m, 5m and 30m). One event never succeeds for %s, and some fail twice for %s.",
			lease, keyline.DefaultLease, strings.Join(delays, " and "), poisonConsumer, flakyConsumer)),
	}
	if cfg.Sabotage != "" {
		text = append(text, bad.Render("Delivery is sabotaged on purpose ("+cfg.Sabotage+"): the checks must notice."))
	}
	_, _ = lipgloss.Fprintln(s.w, strings.Join(text, "\n")+"\n")
}

func (s *show) killed(k killed) {
	var keys []string
	for _, h := range k.records[:min(len(k.records), spotlights)] {
		keys = append(keys, short(h.key.Record))
	}
	if len(k.records) > spotlights {
		keys = append(keys, "…")
	}
	s.line(bad.Render(fmt.Sprintf("✖ kill -9 %s (pid %d), which holds %d records: %s", k.process.name, k.process.cmd.Process.Pid,
		len(k.records), strings.Join(keys, ", "))))
}

// deliveries tells what was done for the records that are followed, event by
// event; those that end make room.
func (s *show) deliveries(marks []mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type event struct {
		key keyline.Key
		seq int64
	}
	var order []event
	done := map[event][]mark{}
	turn := map[keyline.Key]int{} // records as they come up, and a record's events by seq
	for _, m := range marks {
		if !s.follows(m) {
			continue
		}
		if _, ok := turn[m.key]; !ok {
			turn[m.key] = len(turn)
		}
		e := event{m.key, m.seq}
		if done[e] == nil {
			order = append(order, e)
		}
		done[e] = append(done[e], m)
	}
	slices.SortFunc(order, func(a, b event) int {
		return cmp.Or(cmp.Compare(turn[a.key], turn[b.key]), cmp.Compare(a.seq, b.seq))
	})
	for _, e := range order {
		var by []string
		for _, m := range done[e] {
			by = append(by, m.consumer+faint.Render("·"+m.worker))
		}
		typ := strings.TrimPrefix(done[e][0].typ, "activity.")
		style := colours[s.followed[e.key]]
		s.write(style.Render(fmt.Sprintf("%-17s #%-3d %-13s", short(e.key.Record), e.seq, typ)) + " → " + strings.Join(by, "  "))
	}
	for key := range s.over {
		delete(s.followed, key)
	}
	clear(s.over)
}

// follows reports whether a record is followed, and begins to where there is room.
func (s *show) follows(m mark) bool {
	if _, ok := s.followed[m.key]; !ok {
		if m.seq > 1 || len(s.followed) == spotlights {
			return false // a story is told from its beginning
		}
		taken := slices.Collect(maps.Values(s.followed))
		for i := range spotlights {
			if !slices.Contains(taken, i) {
				s.followed[m.key] = i
				break
			}
		}
	}
	switch m.typ {
	case "activity.completed", "activity.cancelled", "activity.deleted":
		s.over[m.key] = true
	}
	return true
}

func (s *show) troubles(list []trouble) {
	for _, t := range list {
		what := fmt.Sprintf("%s fails on %s #%d %s, run %d: %s", t.consumer, short(t.record), t.seq, strings.TrimPrefix(t.typ, "activity."), t.attempt, t.message)
		if t.dead {
			s.line(bad.Render("☠ " + what + "; a dead letter, younger events go on"))
			continue
		}
		s.line(warn.Render("! " + what + "; it will run again"))
	}
}

func (s *show) totals(t totals) {
	s.line(bold.Render(fmt.Sprintf("%d events appended, %d deliveries done, %d records with work, %d deliveries in backoff",
		t.appended, t.delivered, t.waiting, t.backoff)))
}

// short is a record's key as it fits on a line.
func short(record string) string {
	kind, id, found := strings.Cut(record, ":")
	if !found || len(id) < 12 {
		return record
	}
	return kind + " …" + id[len(id)-6:]
}
