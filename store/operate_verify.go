package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
)

// Violation is something that must not be.
type Violation struct {
	Record int64  `json:"record_id"`
	What   string `json:"what"`
}

// CheckResult is what one check of a verification found.
type CheckResult struct {
	Name       string      `json:"name"`
	Violations int         `json:"violations"`
	Sample     []Violation `json:"sample"` // the first few
}

// Verification is what the checks found.
type Verification struct {
	OK     bool          `json:"ok"`
	Checks []CheckResult `json:"checks"`
}

// VerifyOptions are the settings of a verification; zero fields take the defaults.
type VerifyOptions struct {
	// Chunk is how many record ids one statement looks at; default 10,000.
	Chunk int64
	// Sample is how many violations of a check are shown; default 10.
	Sample int
	// Progress is told how many record ids of how many have been looked at.
	Progress func(done, of int64)
}

// verifyChecks are the names of the checks; verify_NAME.sql is what each finds in a range of record ids.
var verifyChecks = []string{
	"seqs_gapless", "cursor_at_most_head", "no_work_without_mailbox", "no_claim_of_a_lost_worker",
	"no_checkpoint_above_head", "no_impossible_states", "no_orphans",
}

// What looks wrong is looked at again, in new snapshots, before it is reported:
// a moment's state (a claim between its worker's loss and its recovery) is none.
const (
	verifyLooks = 3
	verifyPause = 300 * time.Millisecond
)

// Verify looks for what must not be, in chunks of record ids, each a short
// statement of its own, so that it holds nobody up and pins nothing. It changes nothing.
//
// A check counts at most 1,000 violations of a chunk.
func (o *Operate) Verify(ctx context.Context, opts VerifyOptions) (Verification, error) {
	if opts.Chunk == 0 {
		opts.Chunk = 10_000
	}
	if opts.Sample == 0 {
		opts.Sample = 10
	}
	v := Verification{OK: true, Checks: make([]CheckResult, len(verifyChecks))}
	for i, name := range verifyChecks {
		v.Checks[i] = CheckResult{Name: name, Sample: []Violation{}}
	}
	var highest int64
	if err := o.s.hot.QueryRow(ctx, o.s.q("verify_highest")).Scan(&highest); err != nil {
		return v, translate("verify", err)
	}
	for low := int64(math.MinInt64); ; {
		high := max(low, 0) + opts.Chunk
		if high >= highest {
			high = math.MaxInt64 // and what comes meanwhile
		}
		for i := range v.Checks {
			c := &v.Checks[i]
			found, err := o.verifyChunk(ctx, c.Name, low, high)
			if err != nil {
				return v, err
			}
			c.Violations += len(found)
			c.Sample = append(c.Sample, found[:min(len(found), opts.Sample-len(c.Sample))]...)
			v.OK = v.OK && len(found) == 0
		}
		if opts.Progress != nil {
			opts.Progress(min(high, highest), highest)
		}
		if high == math.MaxInt64 {
			return v, nil
		}
		low = high
	}
}

// verifyChunk returns what one check finds in a chunk and finds again.
func (o *Operate) verifyChunk(ctx context.Context, name string, low, high int64) ([]Violation, error) {
	found, err := o.violations(ctx, name, low, high, nil)
	for look := 1; look < verifyLooks && err == nil && len(found) > 0; look++ {
		if err := clock.Sleep(ctx, o.s.clock, verifyPause); err != nil {
			return nil, fmt.Errorf("verify %s: %w", name, err)
		}
		ids := make([]int64, len(found))
		for i, f := range found {
			ids[i] = f.Record
		}
		var again []Violation
		again, err = o.violations(ctx, name, low, high, slices.Compact(ids))
		found = slices.DeleteFunc(found, func(f Violation) bool { return !slices.Contains(again, f) })
	}
	return found, err
}

func (o *Operate) violations(ctx context.Context, name string, low, high int64, only []int64) ([]Violation, error) {
	rows, err := o.s.hot.Query(ctx, o.s.q("verify_"+name), low, high, only)
	if err != nil {
		return nil, translate("verify "+name, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Violation])
	return list, translate("verify "+name, err)
}
