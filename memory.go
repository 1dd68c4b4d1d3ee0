package keyline

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// memory is the twin of the append function for an in-process publisher. The
// same tests run against both.
type memory struct {
	streams map[Key][]Event
	ids     map[uuid.UUID]bool
	used    map[idempotency]int64 // the seq that a key was used for
}

type idempotency struct {
	Key
	key string
}

func newMemory() memory {
	return memory{streams: map[Key][]Event{}, ids: map[uuid.UUID]bool{}, used: map[idempotency]int64{}}
}

func (m memory) events(key Key) []Event { return slices.Clone(m.streams[key]) }

// append appends all of a batch or nothing. events are the new ones.
func (m memory) append(batch []prepared, now time.Time) (results []Appended, events []Event, err error) {
	defer func() {
		if err != nil {
			for _, e := range slices.Backward(events) {
				m.remove(e)
			}
		}
	}()
	for _, p := range batch {
		a, e, err := m.appendOne(p, now)
		if err != nil {
			return nil, events, err
		}
		results = append(results, a)
		if !a.Duplicate {
			events = append(events, e)
		}
	}
	return results, events, nil
}

func (m memory) appendOne(p prepared, now time.Time) (Appended, Event, error) {
	e := Event{Key: p.key(), Type: p.eventType, Version: p.version, Payload: slices.Clone(p.payload), Headers: p.headers, OccurredAt: now, CreatedAt: now}
	if err := setID(&e, p); err != nil {
		return Appended{}, e, err
	}
	stream := m.streams[e.Key]
	key := idempotency{e.Key, p.idempotencyKey}
	if seq := m.used[key]; seq > 0 && p.idempotencyKey != "" {
		first := stream[seq-1]
		if first.Type != p.eventType || first.Version != p.version || !sameJSON(first.Payload, p.payload) || p.id != "" && p.id != first.ID.String() {
			return Appended{}, e, conflict(CodeIdempotencyConflict, "IdempotencyKey", "was used for another event")
		}
		return Appended{Key: e.Key, Seq: seq, ID: first.ID, Duplicate: true}, first, nil
	}
	e.Seq = int64(len(stream)) + 1
	if p.expectedSeq != nil && *p.expectedSeq != e.Seq-1 {
		return Appended{}, e, conflict(CodeWrongExpectedSeq, "ExpectedSeq", "expected seq %d of record %s, found %d", *p.expectedSeq, e.Record, e.Seq-1)
	}
	if m.ids[e.ID] {
		return Appended{}, e, conflict(CodeIdempotencyConflict, "ID", "event id %s exists", e.ID)
	}
	if p.occurredAt != "" {
		var err error
		if e.OccurredAt, err = time.Parse(time.RFC3339Nano, p.occurredAt); err != nil {
			return Appended{}, e, wrong("OccurredAt", "%v", err)
		}
	}
	m.streams[e.Key] = append(stream, e)
	m.ids[e.ID] = true
	if p.idempotencyKey != "" {
		m.used[key] = e.Seq
	}
	return Appended{Key: e.Key, Seq: e.Seq, ID: e.ID}, e, nil
}

// remove takes back an event that is its stream's last.
func (m memory) remove(e Event) {
	stream := m.streams[e.Key]
	m.streams[e.Key] = stream[:len(stream)-1]
	delete(m.ids, e.ID)
	for k, seq := range m.used {
		if k.Key == e.Key && seq == e.Seq {
			delete(m.used, k)
		}
	}
}

// setID settles the event's id and, where it has no usable key, its record.
func setID(e *Event, p prepared) (err error) {
	switch {
	case p.id != "":
		e.ID, err = uuid.Parse(p.id)
	case p.record == "" && p.idempotencyKey != "":
		e.ID = fallbackID(p.tenant, p.idempotencyKey)
	default:
		e.ID, err = uuid.NewV7()
	}
	if p.record == "" {
		e.Record = e.ID.String()
		e.Headers[HeaderFallbackKey] = "true"
	}
	return err
}

// fallbackID is the database's fallback_id.
func fallbackID(tenant, idempotencyKey string) uuid.UUID {
	sum := sha256.Sum256([]byte(strconv.Itoa(len(tenant)) + ":" + tenant + idempotencyKey))
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x0f | 0xa0
	return id
}

// sameJSON compares as jsonb does: numbers by value, objects without order.
func sameJSON(a, b json.RawMessage) bool {
	var values [2]any
	for i, text := range []json.RawMessage{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&values[i]); err != nil {
			return false
		}
	}
	return sameValue(values[0], values[1])
}

func sameValue(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if other, has := b[k]; !has || !sameValue(v, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameValue)
	case json.Number:
		b, ok := b.(json.Number)
		if !ok {
			return false
		}
		x, okX := new(big.Rat).SetString(a.String())
		y, okY := new(big.Rat).SetString(b.String())
		return okX && okY && x.Cmp(y) == 0
	}
	return a == b
}
