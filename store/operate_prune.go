package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// PruneOptions are the settings of a prune; zero fields take the defaults.
type PruneOptions struct {
	// OlderThan is how long settled events are kept at least, by when they were appended; default 90 days.
	OlderThan time.Duration
	// KeepFailures is how long failed attempts and workers that ended are kept; default 7 days.
	KeepFailures time.Duration
	// DryRun counts and changes nothing.
	DryRun bool
	// Progress is told how far it is after every chunk.
	Progress func(PruneReport)
}

// Defaults of a prune.
const (
	pruneOlderThan    = 90 * 24 * time.Hour
	pruneKeepFailures = 7 * 24 * time.Hour
)

// PruneReport is what a prune deleted, or with DryRun would delete, and what it had to keep.
type PruneReport struct {
	DryRun bool `json:"dry_run"`
	// Before is the time that events are from before, by the database's clock.
	Before time.Time `json:"before"`
	// Events were deleted of Records, with the closed DeadLetters and the Skips that spoke of
	// them. A dry run does not count the latter two.
	Events      int64 `json:"events"`
	Records     int64 `json:"records"`
	DeadLetters int64 `json:"dead_letters"`
	Skips       int64 `json:"skips"`
	// Failures and Workers are those that KeepFailures let go.
	Failures int64 `json:"failures"`
	Workers  int64 `json:"workers"`
	// HeldBack is what keeps older events, the most events first. What several hold back counts for each.
	HeldBack []PruneHold `json:"held_back"`
}

// PruneHold is something that keeps events from being pruned.
type PruneHold struct {
	// Reason is "consumer": it has not come to them; "dead_letter": one is open, or to be
	// delivered again; "command": an operator's act waits; "unsettled": there is no active consumer.
	Reason string `json:"reason"`
	// Consumer is whose position, dead letter or command it is. Status is the consumer's, the dead letter's, or the command's kind.
	Consumer string `json:"consumer,omitempty"`
	Status   string `json:"status,omitempty"`
	// Events of Records are kept for it, Sample is the first of some of them.
	Records int64        `json:"records"`
	Events  int64        `json:"events"`
	Sample  []HeldRecord `json:"sample"`
}

// HeldRecord is a record whose events from Seq on are kept.
type HeldRecord struct {
	Tenant string `json:"tenant"`
	Record string `json:"record"`
	Seq    int64  `json:"seq"`
}

// How much one transaction of a prune does: registry changes and, behind them,
// flushes wait for it.
const (
	pruneRecords  = 1_000
	pruneEvents   = 2_000
	pruneFailures = 2_000
	pruneWorkers  = 500
	pruneSample   = 5
)

// prune is a prune under way.
type prune struct {
	*Operate
	opts          PruneOptions
	actor, reason string
	line          int64 // of the audit, 0: nothing has been deleted yet
	report        PruneReport
}

// Prune deletes what retention lets go, in chunks, each a short transaction
// that also notes it in the audit: one line for the whole prune. What it has deleted when
// ctx ends stays deleted, and the report says it.
func (o *Operate) Prune(ctx context.Context, opts PruneOptions, actor, reason string) (PruneReport, error) {
	opts.OlderThan = cmp.Or(opts.OlderThan, pruneOlderThan)
	opts.KeepFailures = cmp.Or(opts.KeepFailures, pruneKeepFailures)
	p := prune{Operate: o, opts: opts, actor: actor, reason: reason, report: PruneReport{DryRun: opts.DryRun, HeldBack: []PruneHold{}}}
	var before time.Time
	err := o.s.hot.QueryRow(ctx, o.s.q("operate_prune_cutoffs"), opts.OlderThan.Seconds(), opts.KeepFailures.Seconds()).Scan(&p.report.Before, &before)
	if err == nil {
		err = p.events(ctx)
	}
	if err == nil && opts.DryRun {
		err = o.s.hot.QueryRow(ctx, o.s.q("operate_prune_counts"), before).Scan(&p.report.Failures, &p.report.Workers)
	} else if err == nil {
		err = p.history(ctx, before)
	}
	slices.SortStableFunc(p.report.HeldBack, func(a, b PruneHold) int { return cmp.Compare(b.Events, a.Events) })
	return p.report, translate("prune", err)
}

// events goes through the records, in the order of their ids.
//
// A chunk that had to end at pruneEvents has looked in vain at all records behind, for each consumer: so the next one looks at
// as many as this one came to. (Records of a hundred events each were looked at fifty times before their turn came.)
func (p *prune) events(ctx context.Context) error {
	records := pruneRecords
	for record := int64(0); record >= 0; {
		var (
			chunk PruneReport
			held  []byte
		)
		err := autocommit(ctx, p.s.hot, p.s.q("operate_prune_events"),
			[]any{record, p.report.Before, records, pruneEvents, !p.opts.DryRun, p.actor, p.reason, p.line},
			one(&record, &chunk.Events, &chunk.Records, &chunk.DeadLetters, &chunk.Skips, &p.line, &held))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(held, &chunk.HeldBack); err != nil {
			return fmt.Errorf("read what is held back: %w", err)
		}
		p.report.add(chunk)
		if !p.opts.DryRun && chunk.Events >= pruneEvents {
			records = min(int(chunk.Records)+1, pruneRecords)
		} else {
			records = min(2*records, pruneRecords)
		}
		if p.opts.Progress != nil {
			p.opts.Progress(p.report)
		}
	}
	return nil
}

// add adds what a chunk has done.
func (r *PruneReport) add(chunk PruneReport) {
	r.Events += chunk.Events
	r.Records += chunk.Records
	r.DeadLetters += chunk.DeadLetters
	r.Skips += chunk.Skips
	for _, h := range chunk.HeldBack {
		i := slices.IndexFunc(r.HeldBack, func(o PruneHold) bool {
			return o.Reason == h.Reason && o.Consumer == h.Consumer && o.Status == h.Status
		})
		if i < 0 {
			r.HeldBack = append(r.HeldBack, h)
			continue
		}
		of := &r.HeldBack[i]
		of.Records += h.Records
		of.Events += h.Events
		of.Sample = append(of.Sample, h.Sample[:min(len(h.Sample), pruneSample-len(of.Sample))]...)
	}
}

// history deletes failed attempts and ended workers.
func (p *prune) history(ctx context.Context, before time.Time) error {
	for _, of := range []struct {
		statement string
		chunk     int64
		total     *int64
	}{{"operate_prune_failures", pruneFailures, &p.report.Failures}, {"operate_prune_workers", pruneWorkers, &p.report.Workers}} {
		for n := of.chunk; n == of.chunk; {
			err := autocommit(ctx, p.s.hot, p.s.q(of.statement), []any{before, of.chunk, p.actor, p.reason, p.line}, one(&n, &p.line))
			if err != nil {
				return err
			}
			*of.total += n
		}
	}
	return nil
}
