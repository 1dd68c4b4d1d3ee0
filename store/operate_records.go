package store

import (
	"context"
	"time"
	"unicode/utf8"

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
	list, err := o.s.recordEvents(ctx, o.s.hot, record, above, limit)
	return list, translate("list events", err)
}
