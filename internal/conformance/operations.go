package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
	"github.com/keylinehq/keyline/keylinetype"
)

const (
	maxRecords   = 6
	maxConsumers = 4
)

func consumerName(i int) string { return string(rune('a' + i)) }

func (c *comparison) oneIn(n int) bool { return c.ch.IntN(n) == 0 }

// pick is one of a list's elements.
func pick[T any](c *comparison, list []T) T { return list[c.ch.IntN(len(list))] }

func (c *comparison) key() string { return fmt.Sprintf("r%d", c.ch.IntN(maxRecords)) }

// record is one that exists, if there is any.
func (c *comparison) record(is func(*sim.RecordRow) bool) *sim.RecordRow {
	var list []*sim.RecordRow
	for i := range c.rows.Records {
		if is(&c.rows.Records[i]) {
			list = append(list, &c.rows.Records[i])
		}
	}
	if len(list) == 0 {
		return nil
	}
	return pick(c, list)
}

func everyRecord(*sim.RecordRow) bool { return true }

func (c *comparison) isHeld(r *sim.RecordRow) bool { _, ok := c.held[r.Key]; return ok }

// ties reports whether some records became due in the same moment: which of
// them is claimed first is then anybody's guess.
func ties(rows sim.Rows) bool {
	seen := map[time.Time]bool{}
	for i := range rows.Records {
		if m := rows.Records[i].Mailbox; m != nil && m.ClaimedBy == 0 {
			if seen[m.DueAt] && m.DueAt != sim.Never || m.Wants != nil && seen[m.WantsDueAt] {
				return true
			}
			seen[m.DueAt], seen[m.WantsDueAt] = true, true
		}
	}
	return false
}

// some are the ids of consumers that are registered.
func (c *comparison) some() (list []int32) {
	for _, row := range c.rows.Consumers {
		if c.oneIn(2) {
			list = append(list, row.ID)
		}
	}
	return list
}

func (c *comparison) events() []sim.NewEvent {
	list := make([]sim.NewEvent, 1+c.ch.IntN(3))
	for i := range list {
		list[i] = sim.NewEvent{Type: pick(c, []string{"x.one", "x.two", "y.one"}), Version: 1 + c.ch.IntN(2)}
	}
	return list
}

// which is a record's present claim, or the one before.
func (c *comparison) which(key string) (what string, of func(*side) held) {
	if c.was[key] && c.oneIn(6) {
		return "by the claim before", func(s *side) held { return s.before[key] }
	}
	return "", func(s *side) held { return s.now[key] }
}

type draw func(*comparison) (string, func(*side) string)

// always is an operation without choices.
func always(do func(*side) string) draw {
	return func(*comparison) (string, func(*side) string) { return "", do }
}

var operations = []operation{
	{"append", 12, func(c *comparison) (string, func(*side) string) {
		key, events := c.key(), c.events()
		if c.open[key] {
			return "", nil
		}
		return fmt.Sprint(key, events), func(s *side) string { s.Append(key, events...); return "ok" }
	}},
	{"begin", 4, func(c *comparison) (string, func(*side) string) {
		key, events := c.key(), c.events()
		if c.open[key] || len(c.open) > 1 {
			return "", nil
		}
		return fmt.Sprint(key, events), func(s *side) string { s.open[key] = s.Begin(key, events...); return "ok" }
	}},
	{"end", 8, func(c *comparison) (string, func(*side) string) {
		if len(c.open) == 0 {
			return "", nil
		}
		key, commit := pick(c, slices.Sorted(maps.Keys(c.open))), !c.oneIn(3)
		return fmt.Sprint(key, " commit ", commit), func(s *side) string {
			a := s.open[key]
			delete(s.open, key)
			if commit {
				a.Commit()
			} else {
				a.Rollback()
			}
			return "ok"
		}
	}},
	{"claim", 18, func(c *comparison) (string, func(*side) string) {
		process, q, only := c.ch.IntN(compared), core.ClaimRequest{Limit: 1 + c.ch.IntN(3), Hosted: c.some()}, ""
		if r := c.record(everyRecord); r != nil && c.oneIn(4) {
			only = r.Key
		}
		if ties(c.rows) || ties(c.sides[1].Rows()) {
			q.Limit = maxRecords
		}
		return fmt.Sprintf("by process %d, hosting %v, %d %s", process, q.Hosted, q.Limit, only), func(s *side) string {
			if q := q; only != "" {
				q.Record = s.row(only).ID
				return s.claim(process, q)
			}
			return s.claim(process, q)
		}
	}},
	{"load", 8, func(c *comparison) (string, func(*side) string) {
		r := c.record(c.isHeld)
		if r == nil {
			return "", nil
		}
		what, of := c.which(r.Key)
		limit := 1 + c.ch.IntN(4)
		return fmt.Sprint(r.Key, what, limit), func(s *side) string {
			h := of(s)
			list, err := s.processes[h.process].Load(s.Context(), []core.LoadRequest{{Claim: h.Claim, Limit: limit}})
			return fmt.Sprintf("%d %s\n%s", len(list), class(err), loaded(list, s.Now()))
		}
	}},
	{"events", 3, func(c *comparison) (string, func(*side) string) {
		r := c.record(everyRecord)
		if r == nil {
			return "", nil
		}
		key, q := r.Key, core.EventRange{From: int64(c.ch.IntN(5)), Limit: c.ch.IntN(4)}
		return fmt.Sprint(key, q), func(s *side) string {
			q := q
			q.Record = s.row(key).ID
			list, err := s.processes[0].LoadEvents(s.Context(), []core.EventRange{q})
			return class(err) + "\n" + events(list)
		}
	}},
	{"news", 3, always(func(s *side) string {
		var all []int64
		for _, r := range s.Rows().Records {
			all = append(all, r.ID)
		}
		epoch, news, err := s.processes[0].News(s.Context(), all)
		var lines []string
		for _, n := range news {
			lines = append(lines, fmt.Sprintf("%s head %d pending %v", s.key(n.Record), n.Head, n.Pending))
		}
		slices.Sort(lines)
		return fmt.Sprintf("%s epoch %d %s", class(err), epoch, strings.Join(lines, ", "))
	})},
	{"next due", 3, func(c *comparison) (string, func(*side) string) {
		hosted := c.some()
		return fmt.Sprint(hosted), func(s *side) string {
			d, ok, err := s.processes[0].NextDue(s.Context(), hosted)
			return fmt.Sprintf("%s %v in %.0fh", class(err), ok, d.Hours())
		}
	}},
	{"flush", 40, drawFlush},
	{"transaction", 8, drawTransaction},
	{"command", 6, func(c *comparison) (string, func(*side) string) {
		r := c.record(func(r *sim.RecordRow) bool { return !c.open[r.Key] })
		if r == nil {
			return "", nil
		}
		key, cmd := r.Key, core.Command{Kind: pick(c, []core.CommandKind{core.CommandRetry, core.CommandSkip}), Actor: "op", Reason: "why", Seq: int64(c.ch.IntN(3))}
		if ids := c.some(); len(ids) > 0 {
			cmd.Consumer = ids[0]
		}
		var dead *sim.DeadRow
		if len(r.DeadLetters) > 0 && c.oneIn(2) {
			d := pick(c, r.DeadLetters)
			dead, cmd.Kind, cmd.Consumer, cmd.Seq = &d, pick(c, []core.CommandKind{core.CommandRetryDead, core.CommandResolveDead}), 0, 0
		}
		return fmt.Sprintf("%s %+v", key, cmd), func(s *side) string {
			cmd := cmd
			cmd.Record = s.row(key).ID
			if dead != nil {
				cmd.DeadLetter = s.dead(key, dead.Seq, dead.Consumer)
			}
			return fmt.Sprintf("command %d", s.Command(cmd))
		}
	}},
	{"lost", 3, func(c *comparison) (string, func(*side) string) {
		process := c.ch.IntN(compared)
		return fmt.Sprint("process ", process), func(s *side) string { return s.lost(process, (process+1)%compared) }
	}},
	{"leave", 3, func(c *comparison) (string, func(*side) string) {
		process, later := c.ch.IntN(compared), c.oneIn(2)
		return fmt.Sprint("process ", process, " later ", later), func(s *side) string { return s.leaves(process, later) }
	}},
	{"recover", 5, always(func(s *side) string {
		n, err := s.processes[0].Recover(s.Context())
		return fmt.Sprintf("%d %s", n, class(err))
	})},
	{"orphans", 5, func(c *comparison) (string, func(*side) string) {
		process, key := c.ch.IntN(compared), c.key()
		if len(c.open) > 0 { // what is not committed cannot be moved on
			return "", nil
		}
		return fmt.Sprintf("of process %d, which forgets %s", process, key), func(s *side) string { return s.orphans(process, key) }
	}},
	{"register", 3, func(c *comparison) (string, func(*side) string) {
		if len(c.rows.Consumers) == maxConsumers {
			return "", nil
		}
		start := pick(c, []int{0, 0, 1, 2})
		return fmt.Sprint("start ", start), func(s *side) string {
			id := s.Register(consumer(consumerName(len(s.Rows().Consumers)), func(x *core.Consumer) {
				x.Start = []keylinetype.Start{keylinetype.Now(), keylinetype.Beginning(), keylinetype.At(in(s.Now(), -1))}[start]
			}))
			return fmt.Sprintf("consumer %d", id)
		}
	}},
	{"revise", 3, onConsumer(func(c *comparison, id int32) (string, func(*side) string) {
		types := pick(c, [][]string{{"*"}, {"x.*"}, {"y.one"}})
		return fmt.Sprint(types), func(s *side) string {
			s.Revise(id, func(x *core.Consumer) { x.Types = types })
			return "ok"
		}
	})},
	{"status", 6, onConsumer(func(c *comparison, id int32) (string, func(*side) string) {
		to := pick(c, []core.Status{core.Active, core.Active, core.Active, core.Paused, core.Paused, core.Disabled, core.Backfilling})
		if c.oneIn(30) {
			to = core.Retired
		}
		return string(to), func(s *side) string { return fmt.Sprint(s.SetStatus(id, to)) }
	})},
	{"sweep", 8, always(func(s *side) string { s.Sweep(); return "ok" })},
	{"registry", 3, func(c *comparison) (string, func(*side) string) {
		process := c.ch.IntN(compared)
		return fmt.Sprint("process ", process), func(s *side) string {
			reg, err := s.processes[process].Registry(s.Context())
			if err != nil {
				return class(err)
			}
			text := fmt.Sprintf("epoch %d", reg.Epoch)
			for _, x := range reg.Consumers {
				text += fmt.Sprintf("; %d %s %s revision %d %v hosted %v", x.ID, x.Name, x.Status, x.Revision, x.Types, x.Hosted)
			}
			return text
		}
	}},
	{"advance", 6, func(c *comparison) (string, func(*side) string) {
		hours := 1 + c.ch.IntN(3)
		if len(c.open) > 0 {
			return "", nil
		}
		return fmt.Sprint(hours), func(s *side) string { s.Advance(time.Duration(hours) * time.Hour); return "ok" }
	}},
}

// onConsumer is an operation on a registered consumer that is not retired.
func onConsumer(f func(*comparison, int32) (string, func(*side) string)) draw {
	return func(c *comparison) (string, func(*side) string) {
		if len(c.rows.Consumers) == 0 {
			return "", nil
		}
		row := pick(c, c.rows.Consumers)
		if row.Status == core.Retired {
			return "", nil
		}
		what, do := f(c, row.ID)
		return fmt.Sprintf("consumer %d %s", row.ID, what), do
	}
}
