package crm

import (
	_ "embed" // the schema
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
)

// TypeNoteInternal is the type of what only consumers with a grant see
// (keyline.Consumer.Internal). Its payload is a Note.
const TypeNoteInternal = "activity.note_internal"

// Note is the payload of TypeNoteInternal: that there is a note, not what it says.
type Note struct {
	Organization string    `json:"organization"`
	ActivityID   uuid.UUID `json:"activity_id"`
	Version      int64     `json:"version"`
	Author       string    `json:"author"`
}

// typeOf is the event type and version that an operation appends.
var typeOf = map[Operation]struct {
	name    string
	version int
}{
	OpCreate:     {"activity.created", 1},
	OpUpdate:     {"activity.updated", 1},
	OpAssign:     {"activity.assigned", 1},
	OpReassign:   {"activity.reassigned", 1},
	OpStart:      {"activity.started", 1},
	OpReschedule: {"activity.rescheduled", 1},
	OpComplete:   {"activity.completed", 2},
	OpCancel:     {"activity.cancelled", 1},
	OpDelete:     {"activity.deleted", 1},
	OpNote:       {TypeNoteInternal, 1},
}

//go:embed schemas/activity.json
var activitySchema string

//go:embed schemas/note.json
var noteSchema string

// EventTypes are all that this application appends, or ever did. The registry
// is strict: what is not here, or does not fit its schema, is refused.
func EventTypes() []keyline.EventType {
	// Each type is an activity, in the state that the type promises.
	snapshots := []struct {
		name    string
		version int
		promise string
	}{
		{"activity.created", 1, `{"properties": {"status": {"const": "planned"}, "version": {"const": 1}}}`},
		{"activity.updated", 1, `true`},
		{"activity.assigned", 1, `{"properties": {"owner": {"type": "string"}, "previous_owner": {"type": "null"}}}`},
		{"activity.reassigned", 1, `{"properties": {"owner": {"type": "string"}, "previous_owner": {"type": "string"}}}`},
		{"activity.started", 1, `{"properties": {"status": {"const": "in_progress"}}}`},
		{"activity.rescheduled", 1, `{"properties": {"scheduled_at": {"type": "string"}}}`},
		// Version 1 did not insist on an outcome. Nobody writes it any more, but
		// it is in old streams, and stays registered for as long.
		{"activity.completed", 1, `{"properties": {"status": {"const": "completed"}}}`},
		{"activity.completed", 2, `{"properties": {"status": {"const": "completed"}, "outcome": {"minLength": 1}}}`},
		{"activity.cancelled", 1, `{"properties": {"status": {"const": "cancelled"}}}`},
		{"activity.deleted", 1, `true`},
	}
	types := []keyline.EventType{{Type: TypeNoteInternal, Schema: json.RawMessage(noteSchema), Internal: true}}
	for _, s := range snapshots {
		schema := fmt.Sprintf(`{"$defs": {"activity": %s}, "allOf": [{"$ref": "#/$defs/activity"}, %s]}`, activitySchema, s.promise)
		types = append(types, keyline.EventType{Type: s.name, Version: s.version, Schema: json.RawMessage(schema)})
	}
	return types
}

// NewClient makes the client that the service appends with. Its
// RegisterEventTypes is to be called once the schema is migrated.
func NewClient() (*keyline.Client, error) {
	return keyline.NewClient(keyline.ClientConfig{EventTypes: EventTypes(), Strict: true})
}

const recordPrefix = "activity:"

// Key is the record that an activity's events are in.
func Key(organization string, id uuid.UUID) keyline.Key {
	return keyline.Key{Tenant: organization, Record: recordPrefix + id.String()}
}
