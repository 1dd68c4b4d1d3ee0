package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// Overview is an installation at a glance, payload-free.
type Overview struct {
	Schema    string `json:"schema"`
	ClusterID string `json:"cluster_id"`
	Ordering  string `json:"ordering"`
	// Strict is whether append refuses types that are not registered.
	Strict    bool               `json:"registry_strict"`
	Records   OverviewRecords    `json:"records"`
	Workers   []OverviewWorker   `json:"workers"`
	Consumers []OverviewConsumer `json:"consumers"`
}

// OverviewRecords counts the records that have work.
type OverviewRecords struct {
	// Claimed are held by a worker, Due could be claimed now, Later are due in
	// the future, and Wanting wait for a consumer that their last holder did not run.
	Claimed int64 `json:"claimed"`
	Due     int64 `json:"due"`
	Later   int64 `json:"later"`
	Wanting int64 `json:"wanting"`
	// OldestDueMS is for how many milliseconds the oldest due record has waited.
	OldestDueMS int64 `json:"oldest_due_ms"`
	DeadLetters int64 `json:"dead_letters"`
	Parked      int64 `json:"parked"`
}

// OverviewWorker is a worker that lives, was lost lately, or ended and has claims that recovery is to free.
type OverviewWorker struct {
	ID        int64           `json:"id"`
	Name      string          `json:"name"`
	Host      string          `json:"host"`
	PID       int             `json:"pid"`
	Status    string          `json:"status"`
	Consumers []string        `json:"consumers"`
	State     json.RawMessage `json:"state"`
	DrainAt   *time.Time      `json:"drain_at"` // when an operator asked it to drain
	StartedAt time.Time       `json:"started_at"`
	BeatAt    time.Time       `json:"beat_at"`
	// Silent is true for one that counts as live and has not renewed for longer than its lease, by the database's
	// clock: it is gone or cut off, and no other worker has been there to find it lost.
	Silent bool  `json:"silent"`
	Claims int64 `json:"claims"`
}

// OverviewConsumer is a line of the map of consumers.
type OverviewConsumer struct {
	Name          string     `json:"name"`
	PreviousNames []string   `json:"previous_names"`
	Status        string     `json:"status"`
	Revision      int        `json:"revision"`
	Types         []string   `json:"types"`
	Versions      []int      `json:"versions"` // null: all
	OnUnsupported string     `json:"on_unsupported"`
	Start         string     `json:"start"`
	StartTime     *time.Time `json:"start_time,omitempty"`
	Effect        string     `json:"effect"`
	EffectNote    string     `json:"effect_note"`
	OnDead        string     `json:"on_dead"`
	Scope         string     `json:"scope"`
	Transactional bool       `json:"transactional"`
	ContractOnly  bool       `json:"contract_only"`
	Internal      bool       `json:"internal"`
	// Sweep is what a change of it leaves to be done: "backfill", "wake", "clear" or "".
	Sweep string `json:"sweep"`
	// HostedBy are the live workers that run it, as name#id.
	HostedBy []string `json:"hosted_by"`

	Completed     int64      `json:"completed"`
	Failed        int64      `json:"failed"`
	Skipped       int64      `json:"skipped"`
	Dead          int64      `json:"dead"`
	Retried       int64      `json:"retried"`
	LastSuccessAt *time.Time `json:"last_success_at"`
	LastFailureAt *time.Time `json:"last_failure_at"`
	DeadLetters   int64      `json:"dead_letters"` // open ones
	Parked        int64      `json:"parked"`
	// Backoff, Pending and OldestAt are what waits, as a worker counted it at CountedAt (null: never): deliveries that wait for
	// their next attempt, dead letters among them; events beyond its place, at least so many where PendingExact is false;
	// and when the oldest of those was appended.
	Backoff      int64      `json:"backoff"`
	Pending      int64      `json:"pending"`
	PendingExact bool       `json:"pending_exact"`
	OldestAt     *time.Time `json:"oldest_at"`
	CountedAt    *time.Time `json:"counted_at"`
}

// Overview reads an installation at a glance. It is not one snapshot: it is for
// people and monitors, not for decisions.
func (o *Operate) Overview(ctx context.Context) (Overview, error) {
	v := Overview{Schema: o.s.schema}
	backlog, err := o.s.Backlog(ctx)
	if err != nil {
		return v, err
	}
	r := &v.Records
	r.OldestDueMS, r.DeadLetters, r.Parked = backlog.OldestAge.Milliseconds(), backlog.DeadLetters, backlog.Parked
	err = o.s.lease.QueryRow(ctx, o.s.q("overview_installation")).Scan(&v.ClusterID, &v.Ordering, &v.Strict, &r.Claimed, &r.Due, &r.Later, &r.Wanting)
	if err != nil {
		return v, translate("read the installation", err)
	}
	if v.Workers, err = o.Workers(ctx); err != nil {
		return v, err
	}
	v.Consumers, err = o.ConsumerMap(ctx)
	return v, err
}

// Workers reads the workers that live, those that were lost within the hour, and those whose claims are still to be freed.
func (o *Operate) Workers(ctx context.Context) ([]OverviewWorker, error) {
	rows, err := o.s.lease.Query(ctx, o.s.q("overview_workers"))
	if err != nil {
		return nil, translate("read workers", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w OverviewWorker, err error) {
		err = row.Scan(&w.ID, &w.Name, &w.Host, &w.PID, &w.Status, &w.Consumers, &w.State, &w.DrainAt, &w.StartedAt, &w.BeatAt, &w.Silent, &w.Claims)
		return w, err
	})
	return list, translate("read workers", err)
}

// ConsumerMap reads the registered consumers, with what they change, who runs
// them and how they fare.
func (o *Operate) ConsumerMap(ctx context.Context) ([]OverviewConsumer, error) {
	rows, err := o.s.lease.Query(ctx, o.s.q("overview_consumers"))
	if err != nil {
		return nil, translate("read consumers", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c OverviewConsumer, err error) {
		err = row.Scan(&c.Name, &c.PreviousNames, &c.Status, &c.Revision, &c.Types, &c.Versions, &c.OnUnsupported, &c.Start, &c.StartTime,
			&c.Effect, &c.EffectNote, &c.OnDead, &c.Scope, &c.Transactional, &c.ContractOnly, &c.Internal, &c.Sweep, &c.HostedBy,
			&c.Completed, &c.Failed, &c.Skipped, &c.Dead, &c.Retried, &c.LastSuccessAt, &c.LastFailureAt, &c.DeadLetters, &c.Backoff, &c.Parked,
			&c.Pending, &c.PendingExact, &c.OldestAt, &c.CountedAt)
		return c, err
	})
	return list, translate("read consumers", err)
}
