package keyline

import (
	"context"
	"errors"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

// BulkOptions are how a bulk act goes on; zero fields take the defaults.
type BulkOptions struct {
	// DryRun counts and changes nothing.
	DryRun bool
	// Upto leaves alone what has a higher id: with the Upto of a dry run's report, what has died since it counted; 0: nothing.
	Upto int64
	// PerSecond is the most items begun per second; 0: as fast as they are applied.
	PerSecond int
	// Progress is told of every item when it has ended, of how many there are in all.
	Progress func(item BulkItem, of int64)
}

// BulkItem is what became of one dead letter of a bulk act.
type BulkItem struct {
	Act
	// Code is "" where it was applied, else the code of the error, and Message its text.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// BulkReport is what became of a bulk act.
type BulkReport struct {
	DryRun bool `json:"dry_run"`
	// Matched is how many open dead letters the filter took when it began.
	Matched int64 `json:"matched"`
	// Applied, Nothing and Failed are how many of them were applied, needed
	// nothing any more, and went wrong.
	Applied int64 `json:"applied"`
	Nothing int64 `json:"nothing_to_do"`
	Failed  int64 `json:"failed"`
	// Failures are the first hundred that went wrong; Progress is told of all.
	Failures []BulkItem `json:"failures"`
	// Upto is the highest id of those that the filter took.
	Upto int64 `json:"upto"`
}

// bulkPage is how many commands wait for their records' holders at once, and
// most how many failures a report keeps.
const (
	bulkPage     = 100
	bulkFailures = 100
)

// RetryDeadLetters implements Operator.
func (o *operator) RetryDeadLetters(ctx context.Context, f DeadLetterFilter, reason string, opts BulkOptions) (BulkReport, error) {
	return o.bulk(ctx, bulk{op: "retry dead letters", filter: f, reason: reason, opts: opts, command: retryDead})
}

// ResolveDeadLetters implements Operator.
func (o *operator) ResolveDeadLetters(ctx context.Context, f DeadLetterFilter, reason string, opts BulkOptions) (BulkReport, error) {
	return o.bulk(ctx, bulk{op: "resolve dead letters", filter: f, reason: reason, reasonRequired: !opts.DryRun, opts: opts, command: resolveDead})
}

type bulk struct {
	op, reason     string
	reasonRequired bool
	filter         DeadLetterFilter
	opts           BulkOptions
	command        func(store.DeadLetterRow) core.Command
}

// bulk goes through the open dead letters, the oldest first, up to the one that
// was the youngest when it began: what dies again is not retried without end.
func (o *operator) bulk(ctx context.Context, b bulk) (BulkReport, error) {
	report := BulkReport{DryRun: b.opts.DryRun, Failures: []BulkItem{}}
	if err := o.may(b.op, b.reason, b.reasonRequired); err != nil {
		return report, err
	}
	q, ok := o.query(b.filter)
	if !ok {
		if b.opts.DryRun {
			return report, nil
		}
		return report, nothing(b.op, "no open dead letter matches")
	}
	q.Statuses = []string{deadOpen}
	matched, upto, err := o.store.CountDeadLetters(ctx, q, b.opts.Upto)
	report.Matched, report.Upto = matched, upto
	if err != nil || b.opts.DryRun {
		return report, operated(b.op, err)
	}
	if matched == 0 {
		return report, nothing(b.op, "no open dead letter matches")
	}
	pace := newPace(b.opts.PerSecond)
	for above := int64(0); ; {
		page, err := o.store.OldestDeadLetters(ctx, q, above, upto, bulkPage)
		if err != nil {
			return report, operated(b.op, err)
		}
		if len(page) == 0 {
			return report, nil
		}
		above = page[len(page)-1].ID
		if err := o.bulkPage(ctx, b, pace, page, &report); err != nil {
			return report, err
		}
	}
}

// bulkPage gives the commands of a page, then waits for each.
func (o *operator) bulkPage(ctx context.Context, b bulk, pace *pace, page []DeadLetter, report *BulkReport) error {
	started := make([]Act, 0, len(page))
	var cancelled error
	for _, d := range page {
		if cancelled = pace.wait(ctx); cancelled != nil {
			break // those that are given are still waited for, as long as they may be
		}
		act, err := o.start(ctx, b.op, b.command(d), ofDead(d), b.reason)
		if err != nil {
			b.ended(report, act, err)
			continue
		}
		started = append(started, act)
	}
	for _, act := range started {
		act, err := o.finish(ctx, b.op, act)
		b.ended(report, act, err)
	}
	if err := ctx.Err(); err != nil {
		return &Error{Code: CodeCancelled, Message: "stopped before the end; what was given stays given", op: b.op, cause: err}
	}
	return cancelled
}

func (b bulk) ended(report *BulkReport, act Act, err error) {
	item := BulkItem{Act: act}
	var e *Error
	switch {
	case err == nil:
		report.Applied++
	case errors.As(err, &e):
		item.Code, item.Message = e.Code, e.Message
	default:
		item.Code, item.Message = CodeDatabase, err.Error()
	}
	switch {
	case item.Code == CodeNothingToDo:
		report.Nothing++
	case item.Code != "":
		report.Failed++
		if len(report.Failures) < bulkFailures {
			report.Failures = append(report.Failures, item)
		}
	}
	if b.opts.Progress != nil {
		b.opts.Progress(item, report.Matched)
	}
}

// pace spreads the items of a bulk act.
type pace struct {
	clock clock.Clock
	gap   time.Duration
	next  time.Duration
}

func newPace(perSecond int) *pace {
	p := &pace{clock: clock.Real()}
	if perSecond > 0 {
		p.gap = time.Second / time.Duration(perSecond)
	}
	p.next = p.clock.Mono()
	return p
}

func (p *pace) wait(ctx context.Context) error {
	if p.gap == 0 {
		return ctx.Err()
	}
	now := p.clock.Mono()
	if now < p.next {
		if err := clock.Sleep(ctx, p.clock, p.next-now); err != nil {
			return err
		}
	}
	p.next = max(p.next, now) + p.gap
	return nil
}
