package store

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/keylinetype"
)

// RecordSummary is a record in a list.
type RecordSummary struct {
	Tenant string `json:"tenant"`
	Record string `json:"record"`
	Head   int64  `json:"head"`
	// Cursor is the seq up to which every consumer without a place of its own is done.
	Cursor int64 `json:"cursor"`
	// Working is true where the record has work; DueAt is then when, null: when something happens.
	Working bool       `json:"working"`
	DueAt   *time.Time `json:"due_at"`
	// WorkerID holds it, null: nobody.
	WorkerID *int64 `json:"worker_id"`
	Worker   string `json:"worker"`
}

// Records lists records by tenant and key, those behind after (nil: from the first), at most limit: of one tenant, those whose
// key begins so, or (nil) of all.
func (o *Operate) Records(ctx context.Context, tenant *string, prefix string, after *keylinetype.Key, limit int) ([]RecordSummary, error) {
	if after == nil {
		after = &keylinetype.Key{} // no key is empty
	}
	rows, err := o.s.hot.Query(ctx, o.s.q("operate_records"), after.Tenant, after.Record, limit, tenant, prefix, unlessEmpty(beyond(prefix)))
	if err != nil {
		return nil, translate("list records", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RecordSummary])
	return list, translate("list records", err)
}

// beyond is the least text that is greater than all that begin with prefix, byte by byte; "" where there is none.
func beyond(prefix string) string {
	for prefix != "" {
		r, n := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-n]
		switch r {
		case utf8.MaxRune:
			continue // nothing is greater: the rune in front decides
		case 0xD7FF:
			return prefix + "\uE000" // what is between is no text
		}
		return prefix + string(r+1)
	}
	return ""
}

// Events lists events of a record, those above a seq, at most limit, payload-free. ErrNotFound where there is no such record.
func (o *Operate) Events(ctx context.Context, key keylinetype.Key, above int64, limit int) ([]RecordEvent, error) {
	record, err := o.s.FindRecord(ctx, key)
	if err != nil {
		return nil, err
	}
	list, err := o.recordEvents(ctx, o.s.hot, record, above, limit)
	return list, translate("list events", err)
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
		v.Events, err = o.recordEvents(ctx, tx, id, v.Head-int64(events), events)
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

func (o *Operate) recordEvents(ctx context.Context, on queryer, record, above int64, limit int) ([]RecordEvent, error) {
	rows, err := on.Query(ctx, o.s.q("show_events"), record, above, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[RecordEvent])
}
