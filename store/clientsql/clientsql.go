// Package clientsql holds the statements of the public client: append, reading
// a stream, the registry of event types. They lie apart from the runtime's, so
// that a program that only appends needs nothing of the runtime.
package clientsql

import (
	"embed"
	"fmt"
	"strings"

	"github.com/keylinehq/keyline/migrations"
)

//go:embed *.sql
var files embed.FS

// Statements are the statements for one schema.
type Statements struct {
	Append, AppendMany, Events                                          string
	EventTypes, UpsertEventTypes, Strict, SetStrict                     string
	LockMeta, RegistryBarrier, RaiseEpoch                               string
	RegisteredTypes, ClaimInProcess, ReleaseInProcess, ClaimedInProcess string
}

// For returns the statements for a schema; "" means migrations.DefaultSchema.
func For(schema string) (*Statements, error) {
	if schema == "" {
		schema = migrations.DefaultSchema
	}
	if err := migrations.CheckSchemaName(schema); err != nil {
		return nil, err
	}
	var s Statements
	for name, dst := range map[string]*string{
		"append": &s.Append, "append_many": &s.AppendMany, "events": &s.Events,
		"event_types": &s.EventTypes, "upsert_event_types": &s.UpsertEventTypes, "strict": &s.Strict, "set_strict": &s.SetStrict,
		"lock_meta": &s.LockMeta, "registry_barrier": &s.RegistryBarrier, "raise_epoch": &s.RaiseEpoch,
		"registered_types": &s.RegisteredTypes, "claim_in_process": &s.ClaimInProcess,
		"release_in_process": &s.ReleaseInProcess, "claimed_in_process": &s.ClaimedInProcess,
	} {
		text, err := files.ReadFile(name + ".sql")
		if err != nil {
			return nil, fmt.Errorf("client statement %s: %w", name, err)
		}
		*dst = strings.ReplaceAll(string(text), "{{.schema}}", schema)
	}
	return &s, nil
}
