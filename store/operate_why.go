package store

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/keylinetype"
)

// WhyRows are the rows that say why a record is where it is, of one snapshot
// but for AppenderHolds.
type WhyRows struct {
	Key          keylinetype.Key
	Record       int64
	Head, Cursor int64
	// Mailbox is false where there is nothing to do; DueAt is then nil, as it is
	// where the work waits for something other than time.
	Mailbox      bool
	DueAt        *time.Time
	Worker       *int64 // that has claimed it
	WorkerName   string
	WorkerStatus string
	WorkerSilent bool // it has not renewed for longer than its lease
	ClaimedAt    *time.Time
	Crashes      int
	Commands     int64 // of operators, waiting
	Ordering     keylinetype.Ordering
	Now          time.Time
	Consumers    []WhyConsumer
	// Live are the workers that count as live, and Disabled the consumers that events pass; of one record alone, not of a list.
	Live     []WhyWorker
	Disabled []string
	// AppenderHolds is true where somebody has held the record's row over several looks.
	AppenderHolds bool
}

// WhyWorker is a worker that counts as live; Silent where it has not renewed for longer than its lease.
type WhyWorker struct {
	ID     int64
	Name   string
	Silent bool
}

// Lives reports whether any worker does that has renewed within its lease.
func (v *WhyRows) Lives() bool {
	return slices.ContainsFunc(v.Live, func(w WhyWorker) bool { return !w.Silent })
}

// WhyConsumer is where one consumer stands on the record.
type WhyConsumer struct {
	ID            int32
	Name          string
	Status        string
	Scope         keylinetype.Scope
	UpdatedAt     time.Time
	Seq           int64
	State         string
	Attempt       int
	NextAttemptAt *time.Time
	FirstFailedAt *time.Time
	ErrorCode     string
	// NextSeq is the next event that concerns it, 0: none is known; NextAt is when it was appended, NextType its type.
	NextSeq  int64
	NextAt   *time.Time
	NextID   *uuid.UUID
	NextType string
	// DeadLetter is its open one of NextSeq, 0: none. Retrying is one that is delivered again beside the stream, RetryingType its event's type.
	DeadLetter   int64
	DeadAt       *time.Time
	Retrying     int64
	RetryingAt   *time.Time
	RetryingType string
	OpenDead     int64
	// Hosts are the live workers that run it, BreakerAt those at which its breaker is not closed.
	Hosts, BreakerAt []int64
}

// How often and how far apart WhyRows looks whether the record's row is held: a
// flush holds it for a millisecond, an appender to the end of its transaction.
const (
	whyLooks = 4
	whyPause = 25 * time.Millisecond
)

// WhyRows reads why a record is where it is; ErrNotFound where there is no such record.
func (o *Operate) WhyRows(ctx context.Context, key keylinetype.Key) (WhyRows, error) {
	id, err := o.s.FindRecord(ctx, key)
	if err != nil {
		return WhyRows{}, err
	}
	var list []WhyRows
	err = o.snapshot(ctx, func(tx pgx.Tx) error {
		if list, err = o.whyRows(ctx, tx, []int64{id}, 0); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, o.s.q("operate_why_workers"))
		if err != nil {
			return err
		}
		if list[0].Live, err = pgx.CollectRows(rows, pgx.RowToStructByPos[WhyWorker]); err != nil {
			return err
		}
		return tx.QueryRow(ctx, o.s.q("operate_why_disabled")).Scan(&list[0].Disabled)
	})
	if err != nil {
		return WhyRows{}, translate("read why", err)
	}
	list[0].AppenderHolds, err = o.held(ctx, id)
	return list[0], err
}

// snapshot runs f in one that only reads.
func (o *Operate) snapshot(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, o.s.lease, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// whyRows reads records that there are, by id and in their order, with all consumers or
// with one and what could hold it back.
func (o *Operate) whyRows(ctx context.Context, tx pgx.Tx, ids []int64, consumer int32) ([]WhyRows, error) {
	rows, err := tx.Query(ctx, o.s.q("operate_why_records"), ids)
	if err != nil {
		return nil, err
	}
	at := make(map[int64]int, len(ids))
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v WhyRows, err error) {
		err = row.Scan(&v.Record, &v.Key.Tenant, &v.Key.Record, &v.Head, &v.Cursor, &v.Mailbox, &v.DueAt,
			&v.Worker, &v.WorkerName, &v.WorkerStatus, &v.WorkerSilent, &v.ClaimedAt, &v.Crashes, &v.Commands, &v.Ordering, &v.Now)
		at[v.Record] = len(at)
		return v, err
	})
	if err != nil {
		return nil, err
	}
	if rows, err = tx.Query(ctx, o.s.q("operate_why_consumers"), ids, consumer); err != nil {
		return nil, err
	}
	consumers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		Record int64
		WhyConsumer
	}])
	for _, c := range consumers {
		v := &list[at[c.Record]]
		v.Consumers = append(v.Consumers, c.WhyConsumer)
	}
	return list, err
}

func (o *Operate) held(ctx context.Context, record int64) (bool, error) {
	for look := range whyLooks {
		if look > 0 {
			if err := clock.Sleep(ctx, o.s.clock, whyPause); err != nil {
				return false, err
			}
		}
		var free bool
		err := o.s.lease.QueryRow(ctx, o.s.q("operate_record_free"), record).Scan(&free)
		if sqlState(err) == statePrivilege || sqlState(err) == stateReadOnly {
			return false, nil // a role that may only read cannot find out
		}
		if err != nil || free {
			return false, translate("look at the record's lock", err)
		}
	}
	return true, nil
}

// EventView is an event as it stands, payload-free.
type EventView struct {
	Tenant string `json:"tenant"`
	Record string `json:"record"`
	RecordEvent
}

// InspectEvent reads an event with the state of each delivery; ErrNotFound where there is none.
func (o *Operate) InspectEvent(ctx context.Context, id uuid.UUID) (EventView, error) {
	v, err := o.inspectEvent(ctx, o.s.lease, id)
	return v, foundOr(err, "event %s", id)
}

func (o *Operate) inspectEvent(ctx context.Context, on rower, id uuid.UUID) (v EventView, err error) {
	err = on.QueryRow(ctx, o.s.q("operate_inspect_event"), id).Scan(&v.Tenant, &v.Record, &v.Seq, &v.ID, &v.Type, &v.Version,
		&v.OccurredAt, &v.CreatedAt, &v.State, &v.Deliveries)
	return v, err
}

// InternalTypes are the event types that are internal.
func (o *Operate) InternalTypes(ctx context.Context) (map[string]bool, error) {
	return o.s.internalTypes(ctx)
}
