package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
	"github.com/keylinehq/keyline/migrations"
)

// Join implements core.Leases. After a fence it first ends what earlier sessions of this process
// may still hold. The consumers that it publishes, by which operators and alarms go, are those of w until
// the registry has been read; from then on those that the registry lets this process host.
func (s *Store) Join(ctx context.Context, w core.Worker) (int64, error) {
	var id int64
	consumers := w.Consumers
	if h := s.hosts.Load(); h != nil {
		consumers = h.names
	}
	if consumers == nil {
		consumers = []string{}
	}
	if s.endSessions.Load() {
		if _, err := s.lease.Exec(ctx, s.q("end_sessions"), s.applicationName()); err != nil {
			return 0, translate("join: end earlier sessions", err)
		}
		s.endSessions.Store(false)
	}
	if err := s.makeUp(ctx); err != nil {
		return 0, fmt.Errorf("join: %w", err)
	}
	if err := s.lease.QueryRow(ctx, s.q("join"), w.Name, s.instance, w.Host, w.PID, w.Lease, consumers).Scan(&id); err != nil {
		return 0, translate("join", err)
	}
	s.joined.Store(true)
	s.warm(ctx, id, min(w.Lease/5, warmFor)) // the lease runs
	return id, nil
}

// makeUp makes up for what may have been lost with a failover since the last Join: tokens, epochs, and what this process has registered.
func (s *Store) makeUp(ctx context.Context) error {
	var jumped bool
	if err := s.lease.QueryRow(ctx, s.q("keep_timeline")).Scan(&jumped); err != nil {
		return translate("look at the timeline", err)
	}
	if jumped {
		s.log.Warn("the database is on another timeline, as after a failover: the last commits may be lost; tokens and epochs go on far beyond")
	}
	defs := s.defined.Load()
	if !s.joined.Load() || defs == nil {
		return nil
	}
	err := s.Register(ctx, *defs, "")
	if errors.Is(err, keylinetype.ErrConflict) {
		// Somebody else has registered another definition meanwhile. The others are not to wait for that.
		s.log.Error("the consumers of this process cannot be registered again; it runs those that still are", "error", err)
		return nil
	}
	return err
}

// Renew implements core.Leases. It also takes a reading of the database's clock, and looks whether the schema still
// serves this binary (Unserved).
func (s *Store) Renew(ctx context.Context, worker int64, state []byte) error {
	if len(state) == 0 {
		state = []byte("{}")
	}
	if !json.Valid(state) {
		return fmt.Errorf("renew: state is not JSON: %w", keylinetype.ErrInvalid)
	}
	var live bool
	var now time.Time
	schema := migrations.Status{Schema: s.schema, Latest: s.level}
	var consumers []string // nil: those that Join has published stay
	if h := s.hosts.Load(); h != nil {
		consumers = h.names
	}
	before := s.clock.Mono()
	if err := autocommit(ctx, s.lease, s.q("renew"), []any{worker, string(state), s.instance, consumers}, one(&live, &now, &schema.Current, &schema.Oldest)); err != nil {
		return translate("renew", err)
	}
	s.clock.read(now, before, s.clock.Mono())
	if s.clock.setBack.Load() {
		s.AskSweep() // which puts it right
	}
	if err := schema.Fit(); err != nil {
		select {
		case s.unserved <- err:
		default: // it is known
		}
	}
	if !live {
		return fmt.Errorf("renew: worker %d is not live: %w", worker, keylinetype.ErrFenced)
	}
	return nil
}

// Unserved delivers one error, which says what to do, when a renewal has found that somebody migrated the schema to a
// version on which this binary cannot work. The lease is renewed all the same, so that the worker can end what it runs.
func (s *Store) Unserved() <-chan error { return s.unserved }

// Beats implements core.Leases.
func (s *Store) Beats(ctx context.Context) ([]core.Beat, error) {
	return s.beats(ctx, s.lease)
}

func (s *Store) beats(ctx context.Context, on queryer) ([]core.Beat, error) {
	rows, err := on.Query(ctx, s.q("beats"), planAnew)
	if err != nil {
		return nil, translate("read beats", err)
	}
	beats, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (core.Beat, error) {
		var b core.Beat
		err := row.Scan(&b.Worker, &b.Beat, &b.Lease, &b.Drain, &b.Gone)
		return b, err
	})
	return beats, translate("read beats", err)
}

// MarkLost implements core.Leases.
func (s *Store) MarkLost(ctx context.Context, seen core.Beat) (marked bool, err error) {
	if err := autocommit(ctx, s.lease, s.q("mark_lost"), []any{seen.Worker, seen.Beat}, one(&marked)); err != nil {
		return false, translate("mark lost", err)
	}
	return marked, nil
}

// recoverChunk bounds how many mailboxes one recovery transaction holds.
const recoverChunk = 500

// Recover implements core.Leases.
func (s *Store) Recover(ctx context.Context) (int, error) {
	for total := 0; ; {
		var n int
		if err := autocommit(ctx, s.lease, s.q("recover"), []any{recoverChunk}, one(&n)); err != nil {
			return total, translate("recover", err)
		}
		total += n
		if n < recoverChunk {
			return total, nil
		}
	}
}

// Leave implements core.Leases.
func (s *Store) Leave(ctx context.Context, worker int64) error {
	return translate("leave", autocommit(ctx, s.lease, s.q("leave"), []any{worker, false, s.instance}, none))
}

// LeaveLater implements core.Leases.
func (s *Store) LeaveLater(ctx context.Context, worker int64) error {
	return translate("leave", autocommit(ctx, s.lease, s.q("leave"), []any{worker, true, s.instance}, none))
}

// orphanAge keeps the orphan search away from claims whose answer is on its
// way: the list of held claims was made before this call looks.
const orphanAge = time.Second

// HandBackOrphans implements core.Leases. The caller made held before the call;
// claims younger than a second at the time of the call are left alone.
func (s *Store) HandBackOrphans(ctx context.Context, worker int64, held []core.Held) (n int, err error) {
	records, tokens := make([]int64, len(held)), make([]int64, len(held))
	for i, h := range held {
		records[i], tokens[i] = h.Record, h.Token
	}
	before := s.clock.Now().Add(-orphanAge)
	if err := autocommit(ctx, s.lease, s.q("hand_back_orphans"), []any{worker, records, tokens, before}, one(&n)); err != nil {
		return 0, translate("hand back orphans", err)
	}
	return n, nil
}
