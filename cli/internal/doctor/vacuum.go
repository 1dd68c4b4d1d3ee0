package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// session is somebody that holds something up.
type session struct {
	PID     int32
	Who     string
	Seconds float64
}

func (s session) String() string {
	return fmt.Sprintf("pid %d (%s) for %s", s.PID, s.Who, rounded(s.Seconds))
}

// shown are how many of what was found are named.
const shown = 3

func named[T fmt.Stringer](list []T) string {
	var out []string
	for _, x := range list[:min(len(list), shown)] {
		out = append(out, x.String())
	}
	if more := len(list) - shown; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

func (v *visit) idleInTransaction(ctx context.Context) (finding, error) {
	most := v.opts.Limits.IdleInTransaction
	found, err := list[session](ctx, v, "idle", most.Seconds())
	if err != nil || len(found) == 0 {
		return fine("no session sits in an open transaction for more than %s", most), err
	}
	return finding{Warn, fmt.Sprintf("%d sessions sit in an open transaction, with their locks: %s", len(found), named(found)),
		"commit or roll back in the program; set idle_in_transaction_session_timeout for its role; select pg_terminate_backend(pid) ends one now"}, nil
}

// pin is something that keeps vacuum from removing what died after it began.
type pin struct {
	Kind, Name string
	XIDs       int64
	Seconds    *float64
}

func (p pin) String() string {
	text := fmt.Sprintf("%s %s, %d transactions old", p.Kind, p.Name, p.XIDs)
	if p.Seconds != nil {
		text += ", for " + rounded(*p.Seconds).String()
	}
	return text
}

// nearWraparound is how many transactions before it fails that a database should be frozen.
const nearWraparound = 1_000_000_000

func (v *visit) xminPins(ctx context.Context) (finding, error) {
	l := v.opts.Limits
	found, err := list[pin](ctx, v, "pins", l.PinnedXIDs, l.Pinned.Seconds())
	if err != nil {
		return finding{}, err
	}
	var frozen int64
	if err := v.row(ctx, "frozen", nil, &frozen); err != nil {
		return finding{}, err
	}
	switch {
	case frozen > nearWraparound:
		return finding{Fail, fmt.Sprintf("the database was last frozen %d transactions ago; it stops at two billion. Pins: %s", frozen, named(found)),
			"end what pins the horizon, then vacuum (freeze)"}, nil
	case len(found) > 0:
		return finding{Warn, fmt.Sprintf("vacuum cannot remove dead rows because of %s: queues slow down", named(found)),
			"end the transaction, commit or roll back the prepared one, or drop the replication slot"}, nil
	}
	return fine("nothing has pinned the horizon for %s or %d transactions", l.Pinned, l.PinnedXIDs), nil
}

func (v *visit) autovacuum(ctx context.Context) (finding, error) {
	var (
		on, counts bool
		off        []string
	)
	if err := v.row(ctx, "autovacuum", []any{v.opts.Schema}, &on, &counts, &off); err != nil {
		return finding{}, err
	}
	switch {
	case !on || !counts:
		return finding{Fail, fmt.Sprintf("autovacuum is %s, track_counts is %s: tables that change all the time grow without end", onOff(on), onOff(counts)),
			"set autovacuum and track_counts to on, and reload"}, nil
	case len(off) > 0:
		return finding{Fail, "autovacuum is off for " + strings.Join(off, ", "), "alter table … reset (autovacuum_enabled)"}, nil
	}
	return fine("autovacuum is on"), nil
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// table is one whose rows change all the time.
type table struct {
	Name             string
	Live, Dead, Size int64
}

func (t table) String() string {
	return fmt.Sprintf("%s: %d dead rows beside %d, %d MB", t.Name, t.Dead, t.Live, t.Size>>20)
}

// A hot table's row takes a tenth of bloatedRow; below bloatedSize nobody notices.
const (
	bloatedRow  = 2_000
	bloatedSize = 256 << 20
)

func (v *visit) bloat(ctx context.Context) (finding, error) {
	tables, err := list[table](ctx, v, "bloat", v.opts.Schema)
	if err != nil {
		return finding{}, err
	}
	var found []table
	for _, t := range tables {
		if (t.Dead > v.opts.Limits.DeadRows && t.Dead > t.Live) || (t.Size > bloatedSize && t.Size/bloatedRow > t.Live) {
			found = append(found, t)
		}
	}
	if len(found) > 0 {
		return finding{Warn, named(found), "see xmin_pins and autovacuum first; then vacuum, or vacuum full in a quiet hour, which locks the table"}, nil
	}
	return fine("no hot table has more dead rows than live ones, beyond %d", v.opts.Limits.DeadRows), nil
}

// quietQueue is the share of the queue of notifications above which appends leave wakes out.
const quietQueue = 0.5

func (v *visit) notifyQueue(ctx context.Context) (finding, error) {
	var usage float64
	if err := v.row(ctx, "queue", nil, &usage); err != nil {
		return finding{}, err
	}
	detail := fmt.Sprintf("the queue of notifications is %.1f %% full", 100*usage)
	const fix = "a session that has said LISTEN sits in a transaction: see idle_in_transaction, and end it"
	switch {
	case usage > quietQueue:
		return finding{Fail, detail + ": appends wake nobody, so that workers find work by polling alone", fix}, nil
	case usage > v.opts.Limits.QueueUsage:
		return finding{Warn, detail, fix}, nil
	}
	return fine("%s", detail), nil
}

func (v *visit) clock(ctx context.Context) (finding, error) {
	var now time.Time
	before := v.opts.Clock.Now()
	if err := v.row(ctx, "now", nil, &now); err != nil {
		return finding{}, err
	}
	after := v.opts.Clock.Now()
	offset := now.Sub(before.Add(after.Sub(before) / 2))
	if offset.Abs() > v.opts.Limits.ClockOffset+after.Sub(before)/2 {
		return finding{Warn, fmt.Sprintf("this machine's clock and the database's differ by %s", offset.Round(time.Millisecond)),
			"nothing is delivered at a wrong time for it, but logs and traces do not fit together: let both follow NTP"}, nil
	}
	return fine("this machine's clock is within %s of the database's", v.opts.Limits.ClockOffset), nil
}
