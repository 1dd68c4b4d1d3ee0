package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
)

// side is one of the installations that are compared, with what only it knows:
// ids and tokens differ from side to side.
type side struct {
	*testing.T
	Installation
	processes []Process
	open      map[string]Appender
	// now and before are a record's present claim and the one before it.
	now, before map[string]held
}

// held is a claim: by which process, as which worker.
type held struct {
	process int
	worker  int64
	core.Claim
}

const compared = 3 // processes

// hosts are what each process hosts, whatever is registered.
func hosts(process int) map[string]int {
	m := map[string]int{}
	for i := range maxConsumers {
		if i != process {
			m[consumerName(i)] = 1 + process
		}
	}
	return m
}

func newSide(t *testing.T, make New) *side {
	s := &side{T: t, Installation: make(t), open: map[string]Appender{}, now: map[string]held{}, before: map[string]held{}}
	for i := range compared {
		s.processes = append(s.processes, s.Process(hosts(i)))
	}
	return s
}

// world is what operations are drawn from: the same on both sides.
type world struct {
	rows sim.Rows
	open map[string]bool
	held map[string]int // the process that has claimed it, if it still has
	was  map[string]bool
}

func look(s *side) world {
	w := world{rows: s.Rows(), open: map[string]bool{}, held: map[string]int{}, was: map[string]bool{}}
	for key := range s.open {
		w.open[key] = true
	}
	for key := range s.before {
		w.was[key] = true
	}
	for i := range w.rows.Records {
		r := &w.rows.Records[i]
		if h, ok := s.now[r.Key]; ok && r.Mailbox != nil && r.Mailbox.ClaimedBy == h.worker && r.Mailbox.Token == h.Token {
			w.held[r.Key] = h.process
		}
	}
	slices.SortFunc(w.rows.Records, func(a, b sim.RecordRow) int { return strings.Compare(a.Key, b.Key) })
	return w
}

// row is a record as this side has it.
func (s *side) row(key string) sim.RecordRow {
	s.Helper()
	for _, r := range s.Rows().Records {
		if r.Key == key {
			return r
		}
	}
	s.Fatalf("there is no record %s", key)
	return sim.RecordRow{}
}

func (s *side) key(record int64) string {
	s.Helper()
	for _, r := range s.Rows().Records {
		if r.ID == record {
			return r.Key
		}
	}
	return fmt.Sprintf("unknown record %d", record)
}

// dead is the id of a dead letter; 0: there is none.
func (s *side) dead(key string, seq int64, consumer int32) int64 {
	s.Helper()
	for _, d := range s.row(key).DeadLetters {
		if d.Seq == seq && d.Consumer == consumer {
			return d.ID
		}
	}
	return 0
}

func (s *side) claim(process int, q core.ClaimRequest) string {
	s.Helper()
	p := s.processes[process]
	q.Worker, q.Unbounded = p.Worker(), true
	claims, err := claims(s.T, p, q)
	if err != nil {
		return class(err)
	}
	var list []string
	for _, c := range claims {
		key := s.key(c.Record)
		if h, ok := s.now[key]; ok {
			if c.Token <= h.Token {
				s.Fatalf("record %s: token %d after %d", key, c.Token, h.Token)
			}
			s.before[key] = h
		}
		s.now[key] = held{process, p.Worker(), c}
		list = append(list, fmt.Sprintf("%s crashes %d unclean %v", key, c.Crashes, c.Unclean))
	}
	slices.Sort(list)
	return fmt.Sprintf("%d claimed: %s", len(list), strings.Join(list, ", "))
}

// as flushes for the worker that had a claim, which may be gone.
func (s *side) as(h held, f core.Flush, epoch int64, lost bool) string {
	s.Helper()
	p := s.processes[h.process]
	is := p.Worker()
	p.Become(h.worker)
	defer p.Become(is)
	f.Record, f.Token = h.Record, h.Token
	return flushed(p.Apply(f, epoch, lost))
}

func (s *side) lost(process, observer int) string {
	s.Helper()
	worker := s.processes[process].Worker()
	beats, err := s.processes[observer].Beats(s.Context())
	if err != nil {
		return class(err)
	}
	for _, b := range beats {
		if b.Worker == worker {
			marked, err := s.processes[observer].MarkLost(s.Context(), b)
			s.processes[process] = s.Process(hosts(process)) // its sessions have been ended
			return fmt.Sprintf("marked %v %s", marked, class(err))
		}
	}
	return "not live"
}

func (s *side) leaves(process int, later bool) string {
	s.Helper()
	p := s.processes[process]
	leave := p.Leave
	if later {
		leave = p.LeaveLater
	}
	err := leave(s.Context(), p.Worker())
	gone := p.Worker()
	id, joinErr := p.Join(s.Context(), core.Worker{Name: "w", Host: "here", PID: 1, Lease: Lease})
	if joinErr != nil {
		s.Fatal(joinErr)
	}
	p.Become(id)
	return fmt.Sprintf("left %s, renewal %s", class(err), class(p.Renew(s.Context(), gone, nil)))
}

// orphans hands back what a process does not hold, long after it was claimed.
func (s *side) orphans(process int, forget string) string {
	s.Helper()
	s.Advance(time.Hour)
	var list []core.Held
	for key, h := range s.now {
		if h.process == process && key != forget {
			list = append(list, core.Held{Record: h.Record, Token: h.Token})
		}
	}
	n, err := s.processes[process].HandBackOrphans(s.Context(), s.processes[process].Worker(), list)
	return fmt.Sprintf("%d %s", n, class(err))
}
