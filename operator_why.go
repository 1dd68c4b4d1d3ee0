package keyline

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

// Reason is why a consumer is where it is on a record.
type Reason string

// The reasons. docs/operations.md says what to do about each.
const (
	// ReasonDone: it is done with every event that concerns it.
	ReasonDone Reason = "done"
	// ReasonReady: its next event is due, and a worker takes it as soon as one is free.
	ReasonReady Reason = "ready"
	// ReasonClaimed: a worker holds the record and delivers.
	ReasonClaimed Reason = "claimed"
	// ReasonBackoff: its next event failed and is due again later.
	ReasonBackoff Reason = "backoff"
	// ReasonParked: it waits for an operator, or for code that supports the event's version.
	ReasonParked Reason = "parked"
	// ReasonUnhosted: no live worker runs it.
	ReasonUnhosted Reason = "unhosted"
	// ReasonPaused: an operator paused it.
	ReasonPaused Reason = "paused"
	// ReasonBreakerOpen: it failed on many records, and nothing of it starts for a while.
	ReasonBreakerOpen Reason = "breaker_open"
	// ReasonBackfilling: its start position is still being written on older records.
	ReasonBackfilling Reason = "backfilling"
	// ReasonAppenderInFlight: it is done, and the record's row is held by a transaction that appends.
	ReasonAppenderInFlight Reason = "appender_in_flight"
	// ReasonLockstep: the event in front is not done for another consumer (ordering lockstep).
	ReasonLockstep Reason = "lockstep"
	// ReasonScope: a sibling with the scope all_for_one is in backoff or parked.
	ReasonScope Reason = "scope"
)

// Why says why a record is where it is.
type Why struct {
	Tenant string `json:"tenant"`
	Key    string `json:"key"`
	Head   int64  `json:"head"`
	// Cursor is the seq up to which every consumer without a place of its own is done.
	Cursor    int64         `json:"cursor"`
	Consumers []WhyConsumer `json:"consumers"`
	// Sentence says it in words, and what to do next.
	Sentence string `json:"sentence"`
}

// WhyConsumer is one consumer in a Why.
type WhyConsumer struct {
	Name string `json:"name"`
	// Position is the last event that it is done with.
	Position int64 `json:"position"`
	// NextSeq is the next event that concerns it and EventID that one's id; 0 and "" where there is none. Where
	// none of the next 1,000 concerns it, the one behind them, whether it does or not.
	// A viewer is not told EventID, Attempt, ErrorCode and DeadLetter of an event of an internal type.
	NextSeq int64  `json:"next_seq"`
	EventID string `json:"event_id"`
	// Attempt is how often that event has failed, and ErrorCode what it failed with last; 0 and "" where it has not.
	Attempt   int    `json:"attempt"`
	ErrorCode string `json:"error_code"`
	Reason    Reason `json:"reason"`
	// Since is when that began, nil where it is not known.
	Since *time.Time `json:"since"`
	// Worker has the record or, for ReasonBreakerOpen, the open breaker; nil: none.
	Worker        *int64     `json:"worker"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	// DeadLetter is what an operator would retry or resolve; nil: none.
	DeadLetter *int64 `json:"dead_letter"`

	// What the sentence also needs.
	openDead int64
	waitsFor string
}

// unnamed is the Retrying of a dead letter whose number is not for this role's eyes.
const unnamed = -1

// conceal takes out of rows what tells of events of types that are not for this role's eyes: which event, how often and with what it
// failed, and its dead letter. That a consumer waits, at which seq, why and since when, is the record's state, and stays.
func conceal(v *store.WhyRows, internal map[string]bool) {
	if len(internal) == 0 {
		return
	}
	for i := range v.Consumers {
		c := &v.Consumers[i]
		hidden := internal[c.NextType]
		if hidden {
			c.NextID, c.DeadLetter = nil, 0
		}
		// What has failed is the event behind its place. Where that does not concern it any more, as when it was changed since, it
		// is not the next one, and its type is not known here.
		if hidden || c.NextSeq != c.Seq+1 {
			c.Attempt, c.ErrorCode = 0, ""
		}
		if c.Retrying != 0 && internal[c.RetryingType] {
			c.Retrying = unnamed
		}
	}
}

// explain is a function of the rows alone.
func explain(v store.WhyRows) Why {
	w := Why{Tenant: v.Key.Tenant, Key: v.Key.Record, Head: v.Head, Cursor: v.Cursor, Consumers: []WhyConsumer{}}
	for i := range v.Consumers {
		w.Consumers = append(w.Consumers, explainConsumer(&v, &v.Consumers[i]))
	}
	w.Sentence = sentence(&v, w.Consumers)
	return w
}

// positions are where the consumers stand, each with the reason that explain gives.
func positions(v *store.WhyRows) (list []store.RecordPosition) {
	for i := range v.Consumers {
		c := &v.Consumers[i]
		w := explainConsumer(v, c)
		list = append(list, store.RecordPosition{
			Consumer: c.Name, Status: c.Status, Seq: c.Seq, State: string(w.Reason), Attempt: c.Attempt,
			NextAttemptAt: first(w.NextAttemptAt, c.NextAttemptAt), FirstFailedAt: c.FirstFailedAt, ErrorCode: c.ErrorCode,
		})
	}
	return list
}

// explainConsumer finds the reason: what would hold the delivery longest comes first.
func explainConsumer(v *store.WhyRows, c *store.WhyConsumer) WhyConsumer {
	out := WhyConsumer{Name: c.Name, Position: c.Seq, NextSeq: c.NextSeq, Attempt: c.Attempt, ErrorCode: c.ErrorCode, openDead: c.OpenDead}
	if c.NextID != nil {
		out.EventID = c.NextID.String()
	}
	if c.DeadLetter != 0 {
		out.DeadLetter = &c.DeadLetter
	}
	behind := c.NextSeq != 0
	retrying := c.Retrying != 0
	switch {
	case c.Status == string(core.Backfilling):
		out.Reason, out.Since = ReasonBackfilling, &c.UpdatedAt
	case c.Status == string(core.Paused):
		out.Reason, out.Since = ReasonPaused, &c.UpdatedAt
	case !behind && !retrying:
		out.Reason = ReasonDone
		if v.AppenderHolds {
			out.Reason = ReasonAppenderInFlight
		}
	case c.State == string(core.Parked) && !retrying:
		out.Reason, out.Since = ReasonParked, first(c.DeadAt, c.FirstFailedAt, c.NextAt)
	case len(c.Hosts) == 0:
		out.Reason, out.Since = ReasonUnhosted, first(c.NextAt, c.RetryingAt)
	default:
		explainDelivery(v, c, &out)
	}
	return out
}

// explainDelivery is about a delivery that a live worker could run.
func explainDelivery(v *store.WhyRows, c *store.WhyConsumer, out *WhyConsumer) {
	due := c.NextAttemptAt
	if c.NextSeq == 0 || c.State == string(core.Parked) {
		due, out.DeadLetter = c.RetryingAt, &c.Retrying
		if c.Retrying == unnamed {
			out.DeadLetter = nil
		}
	}
	out.Since = first(c.FirstFailedAt, c.NextAt, due)
	if due != nil && due.After(v.Now) {
		out.Reason, out.NextAttemptAt = ReasonBackoff, due
		return
	}
	if s := scopedBy(v, c); s != "" {
		out.Reason, out.waitsFor = ReasonScope, s
		return
	}
	if s := lockstepBehind(v, c); s != "" {
		out.Reason, out.waitsFor = ReasonLockstep, s
		return
	}
	// A breaker is each worker's own: it holds the record where its holder's is open, or where no worker's is closed.
	held := v.Worker != nil && slices.Contains(c.BreakerAt, *v.Worker)
	if held || len(c.BreakerAt) > 0 && (len(c.BreakerAt) == len(c.Hosts) || v.Worker == nil && v.DueAt != nil && v.DueAt.After(v.Now)) {
		out.Reason, out.Worker = ReasonBreakerOpen, &c.BreakerAt[0]
		if held {
			out.Worker = v.Worker
		} else {
			out.NextAttemptAt = v.DueAt // the record was handed back to then
		}
		return
	}
	if v.Worker != nil {
		out.Reason, out.Worker, out.Since = ReasonClaimed, v.Worker, v.ClaimedAt
		return
	}
	out.Reason = ReasonReady
}

// scopedBy names a sibling that holds the others while it fails.
func scopedBy(v *store.WhyRows, c *store.WhyConsumer) string {
	for _, o := range v.Consumers {
		if o.ID != c.ID && o.Scope == AllForOne && o.Status == string(core.Active) &&
			(o.State == string(core.Backoff) || o.State == string(core.Parked)) {
			return o.Name
		}
	}
	return ""
}

// lockstepBehind names a consumer that is not done with an event in front of
// c's next one, the farthest behind of them.
func lockstepBehind(v *store.WhyRows, c *store.WhyConsumer) string {
	if v.Ordering != Lockstep || c.NextSeq == 0 {
		return ""
	}
	name, seq := "", c.NextSeq
	for _, o := range v.Consumers {
		if o.ID != c.ID && o.Status != string(core.Backfilling) && o.NextSeq != 0 && o.NextSeq < seq {
			name, seq = o.Name, o.NextSeq
		}
	}
	return name
}

func first(times ...*time.Time) *time.Time {
	for _, t := range times {
		if t != nil {
			return t
		}
	}
	return nil
}

// severity orders the reasons by what an operator should read first.
var severity = []Reason{ReasonParked, ReasonUnhosted, ReasonPaused, ReasonBreakerOpen, ReasonBackoff, ReasonBackfilling, ReasonScope, ReasonLockstep,
	ReasonAppenderInFlight, ReasonClaimed, ReasonReady, ReasonDone}

// sentence says first what is the matter, and then what else there is to know.
func sentence(v *store.WhyRows, list []WhyConsumer) string {
	says := stuckSentence(v, list)
	if v.Commands > 0 {
		says += fmt.Sprintf(" %d commands of operators wait for the worker that takes it.", v.Commands)
	}
	return says
}

// silentOnWorkers are the reasons whose sentence says nothing of workers.
var silentOnWorkers = []Reason{ReasonParked, ReasonPaused, ReasonBreakerOpen, ReasonBackoff, ReasonBackfilling, ReasonScope, ReasonLockstep}

// stuckSentence is about the worker that holds the record where that is gone, else about the consumer that is worst off,
// and counts the others that wait.
func stuckSentence(v *store.WhyRows, list []WhyConsumer) string {
	switch {
	case v.Worker == nil:
	case v.WorkerStatus != "live":
		return fmt.Sprintf("Worker %s#%d has claimed %s and does not live any more. %s", v.WorkerName, *v.Worker, quoted(v.Key),
			byOthers(v, "Another one frees it within a lease, `keyline recover` does it now."))
	case v.WorkerSilent:
		return fmt.Sprintf("Worker %s#%d has claimed %s and has been silent for longer than its lease. See whether its process runs. %s",
			v.WorkerName, *v.Worker, quoted(v.Key), byOthers(v, "Another worker frees what it holds."))
	}
	worst, waiting := -1, 0
	for i := range list {
		if list[i].Reason == ReasonDone || list[i].Reason == ReasonPaused && v.Consumers[i].NextSeq == 0 {
			continue
		}
		if list[i].Reason != ReasonAppenderInFlight {
			waiting++
		}
		if worst < 0 || slices.Index(severity, list[i].Reason) < slices.Index(severity, list[worst].Reason) {
			worst = i
		}
	}
	if worst < 0 {
		return settledSentence(v, list)
	}
	s := consumerSentence(v, &v.Consumers[worst], &list[worst])
	if !v.Lives() && slices.Contains(silentOnWorkers, list[worst].Reason) {
		s += " No worker lives: start one, since nothing is delivered without."
	}
	if list[worst].Reason != ReasonAppenderInFlight {
		waiting--
	}
	switch {
	case waiting == 1:
		s += " One more consumer is not done here."
	case waiting > 1:
		s += fmt.Sprintf(" %d more consumers are not done here.", waiting)
	}
	return s
}

// byOthers is what somebody else does about the holder's end, or that there is nobody else.
func byOthers(v *store.WhyRows, does string) string {
	if slices.ContainsFunc(v.Live, func(w store.WhyWorker) bool { return !w.Silent && w.ID != *v.Worker }) {
		return does
	}
	return "No other worker lives: start one, which frees what it holds, or `keyline recover`."
}

func settledSentence(v *store.WhyRows, list []WhyConsumer) string {
	var dead []string
	for _, c := range list {
		if c.openDead > 0 {
			dead = append(dead, c.Name)
		}
	}
	switch {
	case len(dead) > 0:
		return fmt.Sprintf("Nothing waits on %s, but %s gave up on events: `keyline dead-letters list --record %s%s` shows them.",
			quoted(v.Key), strings.Join(dead, " and "), shell(v.Key.Record), tenantFlag(v.Key)) + passed(v)
	case len(list) == 0 && len(v.Disabled) > 0:
		return fmt.Sprintf("No consumer waits for %s.", quoted(v.Key)) + passed(v)
	case len(list) == 0:
		return fmt.Sprintf("No consumer is registered that waits for %s. Start a worker.", quoted(v.Key))
	}
	return fmt.Sprintf("Every consumer is done with %s, up to event %d.", quoted(v.Key), v.Head) + passed(v)
}

// passed names the consumers that were disabled: whoever misses something of theirs looks for it in vain above.
func passed(v *store.WhyRows) string {
	const shown = 3
	names := strings.Join(v.Disabled[:min(len(v.Disabled), shown)], ", ")
	switch more := len(v.Disabled) - shown; {
	case more > 0:
		return fmt.Sprintf(" Disabled, so that events pass them: %s and %d more.", names, more)
	case names != "":
		return fmt.Sprintf(" Disabled, so that events pass: %s.", names)
	}
	return ""
}

// consumerSentence says what is the matter and what to do next.
func consumerSentence(v *store.WhyRows, row *store.WhyConsumer, c *WhyConsumer) string {
	key := shell(v.Key.Record) + tenantFlag(v.Key)
	next := fmt.Sprintf("%s waits with event %d of %s", c.Name, max(row.NextSeq, c.Position), quoted(v.Key))
	if row.NextSeq == 0 && row.Retrying != 0 {
		next = fmt.Sprintf("%s waits with %s of %s, which it is to deliver again", c.Name, letter(row.Retrying), quoted(v.Key))
	}
	switch c.Reason {
	case ReasonParked:
		if c.ErrorCode == core.CodeUnsupportedVersion && c.DeadLetter == nil {
			return next + ": its code does not support the event's version. Deploy code that does, or give it up: " +
				fmt.Sprintf("`keyline skip %s %s --reason …`.", key, c.Name)
		}
		if c.DeadLetter == nil {
			return next + fmt.Sprintf(": it is parked there. `keyline skip %s %s --reason …` gives it up.", key, c.Name)
		}
		return next + fmt.Sprintf(": it is parked there after %d attempts (%s).%s Mend the cause, then `keyline dead-letters retry %d`; or give it up: `keyline dead-letters resolve %d --reason …`.",
			c.Attempt, c.ErrorCode, traced(c), *c.DeadLetter, *c.DeadLetter)
	case ReasonUnhosted:
		if !v.Lives() {
			return next + ": no live worker runs it, and none lives at all. Start one that runs it."
		}
		return next + ": no live worker runs it. Start one that does, or, if none ever will, `keyline consumers retire " + c.Name + " --reason …`."
	case ReasonPaused:
		return next + ": it is paused. `keyline consumers resume " + c.Name + "` goes on; `keyline audit --action consumer_paused` says who paused it and why."
	case ReasonBreakerOpen:
		return next + fmt.Sprintf(": it fails on many records, so that worker %d starts nothing of it until a probe succeeds. Mend what it calls; it goes on by itself.", *c.Worker)
	case ReasonBackoff:
		return backoffSentence(next, row, c)
	case ReasonBackfilling:
		return fmt.Sprintf("%s is being prepared to start on older records; it begins when its place on every record is written. `keyline status` shows whether workers live.", c.Name)
	case ReasonScope:
		return next + fmt.Sprintf(": its sibling %s fails on this record, and holds the others back meanwhile. See to %s.", c.waitsFor, c.waitsFor)
	case ReasonLockstep:
		return next + fmt.Sprintf(": %s is not done with an event in front of it, and the order is lockstep. See to %s.", c.waitsFor, c.waitsFor)
	case ReasonAppenderInFlight:
		return fmt.Sprintf("Every committed event of %s is done; a transaction that appends to it is open. It ends with that transaction: look for a long one, by `keyline doctor` or in pg_stat_activity.", quoted(v.Key))
	case ReasonClaimed:
		return next + fmt.Sprintf(": worker %s#%d has it since %s and delivers. If that is too long, look at its handler.%s", v.WorkerName, *c.Worker, c.Since.UTC().Format(time.RFC3339), suspected(v))
	}
	if !v.Mailbox {
		return next + ", and the record has no mailbox, so that no worker will look: run `keyline verify`."
	}
	if gone := silentHosts(v, row); gone != "" {
		return next + fmt.Sprintf(", which is due: %s, which would run it, has been silent for longer than its lease. See whether its process runs, or start another worker.%s", gone, suspected(v))
	}
	return next + ", which is due: a worker takes it as soon as one is free. If it stays so, `keyline status` shows who works." + suspected(v)
}

// silentHosts names the workers that run a consumer where none of them has renewed within its lease, else "".
func silentHosts(v *store.WhyRows, row *store.WhyConsumer) string {
	var names []string
	for _, w := range v.Live {
		if !slices.Contains(row.Hosts, w.ID) {
			continue
		}
		if !w.Silent {
			return ""
		}
		names = append(names, fmt.Sprintf("%s#%d", w.Name, w.ID))
	}
	return strings.Join(names, " or ")
}

// suspected says why a record is slow that was held when a worker was lost.
func suspected(v *store.WhyRows) string {
	if v.Crashes == 0 {
		return ""
	}
	return fmt.Sprintf(" %d times a worker was lost that held it: until its consumers have run, one delivery at a time runs here, and one such record at a time in each worker.", v.Crashes)
}

// traced says how to read what an event failed with.
func traced(c *WhyConsumer) string {
	if c.EventID == "" {
		return ""
	}
	return fmt.Sprintf(" `keyline trace %s` shows the errors.", c.EventID)
}

func backoffSentence(next string, row *store.WhyConsumer, c *WhyConsumer) string {
	at := c.NextAttemptAt.UTC().Format(time.RFC3339)
	switch {
	case row.NextSeq == 0:
		return fmt.Sprintf("%s delivers %s again at %s, beside younger events.", c.Name, letter(row.Retrying), at)
	case row.NextID == nil: // it is concealed
		return next + fmt.Sprintf(": it failed, and is due again at %s.", at)
	}
	return next + fmt.Sprintf(": attempt %d failed%s, the next is due at %s. `keyline retry %s --consumer %s` runs it now.%s",
		c.Attempt, inBrackets(c.ErrorCode), at, row.NextID, c.Name, traced(c))
}

// letter names a dead letter that is delivered again.
func letter(id int64) string {
	if id == unnamed {
		return "a dead letter"
	}
	return fmt.Sprintf("dead letter %d", id)
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func quoted(k Key) string {
	if k.Tenant == "" {
		return k.Record
	}
	return k.Record + " of tenant " + k.Tenant
}

func tenantFlag(k Key) string {
	if k.Tenant == "" {
		return ""
	}
	return " --tenant " + shell(k.Tenant)
}

// shell quotes a word so that the command that the sentence gives can be pasted.
func shell(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/@%+,=", r)
	}
	if word != "" && !strings.HasPrefix(word, "-") && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
