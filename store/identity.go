package store

import (
	"context"

	"github.com/google/uuid"
)

// Identity names the installation for this process: the cluster id alone would
// not do, since a database that was cloned from a template has the same.
type Identity struct {
	Cluster  uuid.UUID
	Database uint32 // its oid
	Schema   string
}

// Identity reads the installation's identity.
func (s *Store) Identity(ctx context.Context) (Identity, error) {
	id := Identity{Schema: s.schema}
	err := s.lease.QueryRow(ctx, s.q("identity")).Scan((*[16]byte)(&id.Cluster), &id.Database)
	return id, translate("read identity", err)
}

// Channel is the notification channel of the schema.
func (s *Store) Channel() string { return s.schema + "_wake" }

// ApplicationName marks this process's sessions; recovery looks for it.
func (s *Store) ApplicationName() string { return s.applicationName() }

// Notify sends a notification to the schema's channel.
func (s *Store) Notify(ctx context.Context, payload string) error {
	_, err := s.lease.Exec(ctx, s.q("notify"), payload)
	return translate("notify", err)
}
