package store

import (
	"context"

	"github.com/google/uuid"
)

// ClusterID identifies the installation: a database and schema, wherever they
// are connected to from.
func (s *Store) ClusterID(ctx context.Context) (uuid.UUID, error) {
	var id [16]byte
	err := s.lease.QueryRow(ctx, s.q("cluster_id")).Scan(&id)
	return id, translate("read cluster id", err)
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
