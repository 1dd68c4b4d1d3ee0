package conformance

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
	"github.com/keylinehq/keyline/keylinetype"
)

// Two installations are compared by what they show as text. Ids of records and
// dead letters and tokens are chance and are left out; times are told in whole
// hours from now, since two clocks never agree on more.

// ahead is how far a time lies ahead.
func ahead(at, now time.Time) string {
	switch {
	case at.IsZero():
		return "-"
	case !at.Before(sim.Never):
		return "never"
	}
	return fmt.Sprintf("%+.0fh", math.Round(at.Sub(now).Hours())+0) // no -0
}

// Text shows tables.
func Text(rows sim.Rows, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %d\n", rows.Epoch)
	for _, c := range rows.Consumers {
		fmt.Fprintf(&b, "consumer %d %s %s revision %d sweep %q left %v\n", c.ID, c.Name, c.Status, c.Revision, c.Sweep, keys(rows, c.Left))
	}
	slices.SortFunc(rows.Records, func(a, b sim.RecordRow) int { return strings.Compare(a.Key, b.Key) })
	for i := range rows.Records {
		record(&b, &rows.Records[i], now)
	}
	return b.String()
}

// keys are the keys of records.
func keys(rows sim.Rows, of []int64) (list []string) {
	for _, r := range rows.Records {
		if slices.Contains(of, r.ID) {
			list = append(list, r.Key)
		}
	}
	slices.Sort(list)
	return list
}

func record(b *strings.Builder, r *sim.RecordRow, now time.Time) {
	fmt.Fprintf(b, "record %s head %d cursor %d\n", r.Key, r.Head, r.Cursor)
	if m := r.Mailbox; m != nil {
		fmt.Fprintf(b, "  mailbox of %d due %s cursor %d crashes %d unclean %v wants %v %s\n", m.ClaimedBy, ahead(m.DueAt, now), m.Cursor,
			m.Crashes, m.Unclean, m.Wants, ahead(m.WantsDueAt, now))
	}
	for _, c := range r.Checkpoints {
		fmt.Fprintf(b, "  row %s\n", checkpoint(c, now))
	}
	for _, d := range r.DeadLetters {
		fmt.Fprintf(b, "  dead %s %s %s failed %s\n", retry(d.DeadRetry, now), d.Status, d.Reason, ahead(d.FailedAt, now))
	}
	for _, f := range r.Failures {
		fmt.Fprintf(b, "  failure c%d seq %d attempt %d %s %s\n", f.Consumer, f.Seq, f.Attempt, f.Code, ahead(f.At, now))
	}
	for _, s := range r.Skips {
		fmt.Fprintf(b, "  skip c%d seq %d attempt %d %s %q %s\n", s.Consumer, s.Seq, s.Attempt, s.Code, s.Reason, ahead(s.At, now))
	}
	for _, c := range r.Commands {
		fmt.Fprintf(b, "  command %d %s c%d seq %d applied %v done %v %q\n", c.ID, c.Kind, c.Consumer, c.Seq, c.Applied, c.Done, c.Detail)
	}
}

func checkpoint(c core.Checkpoint, now time.Time) string {
	return fmt.Sprintf("c%d seq %d %s attempt %d granted %d crashes %d next %s first %s code %q live from %d redeliver to %d", c.Consumer, c.Seq, c.State,
		c.Attempt, c.Granted, c.Crashes, ahead(c.NextAttemptAt, now), ahead(c.FirstFailedAt, now), c.ErrorCode, c.LiveFrom, c.RedeliverTo)
}

func retry(d core.DeadRetry, now time.Time) string {
	return fmt.Sprintf("c%d seq %d attempt %d granted %d crashes %d started %v due %s first %s code %q", d.Consumer, d.Seq, d.Attempt,
		d.Granted, d.Crashes, d.Started, ahead(d.DueAt, now), ahead(d.FirstFailedAt, now), d.ErrorCode)
}

// loaded shows the answer to a Load.
func loaded(list []core.Loaded, now time.Time) string {
	var records []string
	for _, l := range list {
		var b strings.Builder
		fmt.Fprintf(&b, "%s head %d base %d crashes %d unclean %v\n", l.Key, l.Head, l.Base, l.Crashes, l.Unclean)
		slices.SortFunc(l.Checkpoints, func(a, b core.Checkpoint) int { return int(a.Consumer - b.Consumer) })
		for _, c := range l.Checkpoints {
			fmt.Fprintf(&b, "  row %s\n", checkpoint(c, now))
		}
		for _, c := range l.Commands {
			fmt.Fprintf(&b, "  command %d %s c%d seq %d by %s because %q", c.ID, c.Kind, c.Consumer, c.Seq, c.Actor, c.Reason)
			if c.Dead != nil {
				fmt.Fprintf(&b, " open %v: %s", c.DeadOpen, retry(*c.Dead, now))
			}
			b.WriteString("\n")
		}
		var retries []string
		for _, d := range l.Retries {
			retries = append(retries, "  retry "+retry(d, now)+"\n")
		}
		slices.Sort(retries)
		b.WriteString(strings.Join(retries, "") + events(l.Events))
		records = append(records, b.String())
	}
	slices.Sort(records)
	return strings.Join(records, "")
}

func events(list []core.Event) string {
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "  event %s %d %s/%d\n", e.Event.Key.Record, e.Seq, e.Type, e.Version)
	}
	return b.String()
}

// class shows an error by what the caller may do.
func class(err error) string {
	for _, c := range []error{keylinetype.ErrFenced, keylinetype.ErrNotFound, keylinetype.ErrConflict, keylinetype.ErrInvalid, keylinetype.ErrUnavailable} {
		if errors.Is(err, c) {
			return c.Error()
		}
	}
	if err != nil {
		return "an error"
	}
	return "ok"
}

func flushed(r core.FlushResult) string {
	status := [...]string{core.FlushKept: "kept", core.FlushGone: "gone", core.FlushFenced: "fenced", core.FlushEpoch: "epoch"}[r.Status]
	return fmt.Sprintf("%s head %d pending %v busy %v rewritten %v", status, r.Head, r.Pending, r.Busy, r.Rewritten)
}
