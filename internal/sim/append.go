package sim

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// NewEvent is an event to append to the twin.
type NewEvent struct {
	Type    string
	Version int
}

// Appending is an append in a transaction that has not ended: it holds the
// record's row lock.
type Appending struct {
	record *record
	events []core.Event
	at     time.Time
	// locked: the mailbox was there and unclaimed, and was made due; its row is
	// locked until the end.
	locked bool
}

// NewRecord makes a record's place; it does not exist for anybody before the
// first append to it has committed.
func (t *Twin) NewRecord(key keylinetype.Key) int64 {
	r := &record{id: int64(len(t.records) + 1), key: key}
	t.records = append(t.records, r)
	return r.id
}

// BeginAppend runs append in a transaction that stays open. It returns nil
// where another appender holds the record: append would wait.
func (t *Twin) BeginAppend(recordID int64, events ...NewEvent) *Appending {
	r := t.record(recordID)
	if r.open != nil {
		return nil
	}
	a := &Appending{record: r, at: t.Now}
	for i, e := range events {
		t.eventIDs++
		var id uuid.UUID
		binary.BigEndian.PutUint64(id[8:], t.eventIDs)
		a.events = append(a.events, core.Event{Record: r.id, Event: keylinetype.Event{
			Key: r.key, Seq: r.head + int64(i) + 1, ID: id, Type: e.Type, Version: max(e.Version, 1),
			Payload: []byte("null"), OccurredAt: t.Now, CreatedAt: t.Now,
		}})
	}
	m := r.mailbox
	a.locked = m != nil && m.ClaimedBy == 0 && (m.DueAt.After(t.Now) || m.Wants != nil)
	r.open = a
	return a
}

// Commit ends the appender's transaction.
func (a *Appending) Commit() {
	r := a.record
	r.open = nil
	r.head += int64(len(a.events))
	r.events = append(r.events, a.events...)
	switch {
	case r.mailbox == nil:
		r.mailbox = &Mailbox{DueAt: a.at}
	case a.locked:
		r.mailbox.wakeAt(a.at)
	}
}

// Rollback ends it without effect.
func (a *Appending) Rollback() { a.record.open = nil }

// Append appends in a transaction of its own; false where it would wait.
func (t *Twin) Append(recordID int64, events ...NewEvent) bool {
	a := t.BeginAppend(recordID, events...)
	if a == nil {
		return false
	}
	a.Commit()
	return true
}
