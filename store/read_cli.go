package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/keylinetype"
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
func (s *Store) Overview(ctx context.Context) (Overview, error) {
	o := Overview{Schema: s.schema}
	backlog, err := s.Backlog(ctx)
	if err != nil {
		return o, err
	}
	r := &o.Records
	r.OldestDueMS, r.DeadLetters, r.Parked = backlog.OldestAge.Milliseconds(), backlog.DeadLetters, backlog.Parked
	err = s.lease.QueryRow(ctx, s.q("overview_installation")).Scan(&o.ClusterID, &o.Ordering, &o.Strict, &r.Claimed, &r.Due, &r.Later, &r.Wanting)
	if err != nil {
		return o, translate("read the installation", err)
	}
	if o.Workers, err = s.readWorkers(ctx); err != nil {
		return o, err
	}
	o.Consumers, err = s.ConsumerMap(ctx)
	return o, err
}

func (s *Store) readWorkers(ctx context.Context) ([]OverviewWorker, error) {
	rows, err := s.lease.Query(ctx, s.q("overview_workers"))
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
func (s *Store) ConsumerMap(ctx context.Context) ([]OverviewConsumer, error) {
	rows, err := s.lease.Query(ctx, s.q("overview_consumers"))
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

// RecordView is a record as it stands, payload-free.
type RecordView struct {
	Tenant string `json:"tenant"`
	Record string `json:"record"`
	Head   int64  `json:"head"`
	Cursor int64  `json:"cursor"`
	// Work is null where there is nothing to do.
	Work      *RecordWork      `json:"work"`
	Positions []RecordPosition `json:"consumers"`
	Events    []RecordEvent    `json:"events"`
}

// RecordWork is a record's mailbox.
type RecordWork struct {
	DueAt     *time.Time `json:"due_at"` // null: when something happens
	Token     int64      `json:"token"`
	Crashes   int        `json:"crashes"`
	Commands  int64      `json:"commands"` // of operators, waiting
	WorkerID  *int64     `json:"worker_id"`
	Worker    string     `json:"worker"`
	ClaimedAt *time.Time `json:"claimed_at"`
}

// RecordPosition is where a consumer stands on a record.
type RecordPosition struct {
	Consumer      string     `json:"consumer"`
	Status        string     `json:"status"`
	Seq           int64      `json:"seq"`
	State         string     `json:"state"` // the reason that Why gives
	Attempt       int        `json:"attempt"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	FirstFailedAt *time.Time `json:"first_failed_at"`
	ErrorCode     string     `json:"error_code"`
}

// RecordEvent is an event of a record, without its payload.
type RecordEvent struct {
	Seq        int64             `json:"seq"`
	ID         uuid.UUID         `json:"id"`
	Type       string            `json:"type"`
	Version    int               `json:"version"`
	OccurredAt time.Time         `json:"occurred_at"`
	CreatedAt  time.Time         `json:"created_at"`
	State      string            `json:"state"`
	Deliveries map[string]string `json:"deliveries"` // by consumer
}

// ReadRecord reads a record and its last events, at most so many; and the rows of the same snapshot that say where each
// consumer stands and why, from which the caller makes Positions. ErrNotFound where there is no such record.
func (o *Operate) ReadRecord(ctx context.Context, key keylinetype.Key, events int) (RecordView, WhyRows, error) {
	v := RecordView{Tenant: key.Tenant, Record: key.Record}
	var (
		id      int64
		working bool
		w       RecordWork
		why     []WhyRows
	)
	err := o.snapshot(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, o.s.q("show_record"), key.Tenant, key.Record).Scan(&id, &v.Head, &v.Cursor, &working, &w.DueAt, &w.Token, &w.Crashes,
			&w.WorkerID, &w.Worker, &w.ClaimedAt, &w.Commands)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("record %q of tenant %q: %w", key.Record, key.Tenant, keylinetype.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if working {
			v.Work = &w
		}
		if why, err = o.whyRows(ctx, tx, []int64{id}, 0); err != nil {
			return err
		}
		v.Events, err = o.s.recordEvents(ctx, tx, id, v.Head-int64(events), events)
		return err
	})
	if err != nil {
		if !errors.Is(err, keylinetype.ErrNotFound) {
			err = translate("read record", err)
		}
		return v, WhyRows{}, err
	}
	why[0].AppenderHolds, err = o.held(ctx, id)
	return v, why[0], err
}

func (s *Store) recordEvents(ctx context.Context, on queryer, record, above int64, limit int) ([]RecordEvent, error) {
	rows, err := on.Query(ctx, s.q("show_events"), record, above, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[RecordEvent])
}
