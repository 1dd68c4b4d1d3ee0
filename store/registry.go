package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
	"github.com/keylinehq/keyline/store/clientsql"
)

// Definition is a consumer as the code declares it.
type Definition struct {
	core.Consumer // without ID and Status
	PreviousNames []string
}

// registered is a consumer's row.
type registered struct {
	core.Consumer
	previousNames []string
}

// Registry implements core.Deliveries: the registered consumers, marked with
// what this process hosts. A consumer whose row has a newer revision than this process's
// code counts as unhosted here.
func (s *Store) Registry(ctx context.Context) (*core.Registry, error) {
	epoch, ordering, rows, err := s.readRegistry(ctx, s.hot)
	if err != nil {
		return nil, err
	}
	internal, err := s.internalTypes(ctx)
	if err != nil {
		return nil, err
	}
	consumers := make([]*core.Consumer, len(rows))
	hosted := &hosts{epoch: epoch, names: []string{}}
	for i := range rows {
		c := &rows[i].Consumer
		if local, ok := s.local[c.Name]; ok && local.Revision >= c.Revision && c.Status != core.Retired {
			c.Hosted, c.Window, c.BatchSize = true, local.Window, local.BatchSize
			hosted.names = append(hosted.names, c.Name)
		}
		consumers[i] = c
	}
	s.keepHosts(hosted)
	if s.epoch.Swap(epoch) < epoch {
		s.AskSweep()
	}
	return core.NewRegistry(epoch, ordering, consumers, internal), nil
}

// hosts are the consumers that this process hosts by the registry of an epoch.
type hosts struct {
	epoch int64
	names []string
}

func (s *Store) keepHosts(h *hosts) {
	for {
		old := s.hosts.Load()
		if old != nil && old.epoch >= h.epoch || s.hosts.CompareAndSwap(old, h) {
			return
		}
	}
}

func (s *Store) internalTypes(ctx context.Context) (map[string]bool, error) {
	rows, err := s.hot.Query(ctx, s.q("internal_types"))
	if err != nil {
		return nil, translate("read event types", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	internal := make(map[string]bool, len(names))
	for _, n := range names {
		internal[n] = true
	}
	return internal, translate("read event types", err)
}

func (s *Store) readRegistry(ctx context.Context, on queryer) (epoch int64, ordering keylinetype.Ordering, list []registered, err error) {
	rows, err := on.Query(ctx, s.q("registry"))
	if err != nil {
		return 0, "", nil, translate("read registry", err)
	}
	err = each(func(rows pgx.Rows) error {
		var (
			r      registered
			id     *int32
			values = make([]any, 0, 18)
		)
		// Without consumers the one row has nulls where they would be.
		var n nullable
		values = append(values, &epoch, &ordering, &id)
		if err := rows.Scan(append(values, n.targets()...)...); err != nil || id == nil {
			return err
		}
		r.ID = *id
		n.fill(&r)
		list = append(list, r)
		return nil
	})(rows)
	return epoch, ordering, list, translate("read registry", err)
}

// nullable scans a consumer's columns, all of which are null where there is none.
type nullable struct {
	name, status, onUnsupported, start, effect, note, onDead, scope *string
	revision                                                        *int
	types, previous                                                 []string
	versions                                                        []int
	startTime                                                       *time.Time
	delays                                                          []int64
	jitter                                                          *float64
	transactional, contractOnly, internal                           *bool
}

func (n *nullable) targets() []any {
	return []any{&n.name, &n.status, &n.revision, &n.types, &n.versions, &n.onUnsupported, &n.start, &n.startTime, &n.effect, &n.note,
		&n.delays, &n.jitter, &n.onDead, &n.scope, &n.transactional, &n.contractOnly, &n.internal, &n.previous}
}

func (n *nullable) fill(r *registered) {
	r.Name, r.Status, r.Revision = *n.name, core.Status(*n.status), *n.revision
	r.Types, r.Versions = n.types, n.versions
	r.OnUnsupported = keylinetype.Unsupported(*n.onUnsupported)
	r.Start = keylinetype.Start{Kind: keylinetype.StartKind(*n.start), Time: value(n.startTime)}
	r.Effect = keylinetype.Effect{Class: keylinetype.EffectClass(*n.effect), Note: *n.note}
	r.Retry = keylinetype.RetryPolicy{Delays: make([]time.Duration, len(n.delays)), Jitter: n.jitter}
	for i, ms := range n.delays {
		r.Retry.Delays[i] = time.Duration(ms) * time.Millisecond
	}
	r.OnDead, r.Scope = keylinetype.OnDead(*n.onDead), keylinetype.Scope(*n.scope)
	r.Transactional, r.ContractOnly, r.Internal = *n.transactional, *n.contractOnly, *n.internal
	r.previousNames = n.previous
}

// Register brings the registry to what the code declares: new consumers are
// added by their start rule, renamed ones keep their id, changed ones are updated where the code's
// revision is higher. An older revision changes nothing. ordering is the installation's; "" leaves it.
//
// Changing what decides deliveries without raising the revision is refused: two
// processes would take turns in overwriting each other.
//
// Every later Join repeats it, since a failover in between may have lost it.
func (s *Store) Register(ctx context.Context, defs []Definition, ordering keylinetype.Ordering) error {
	s.defined.Store(&defs)
	changes, err := s.registryChanges(ctx, s.hot, defs, ordering)
	if err != nil || len(changes) == 0 {
		return err
	}
	return s.changeRegistry(ctx, func(tx pgx.Tx) error {
		// Under the barrier, look again: another process may have been faster.
		changes, err := s.registryChanges(ctx, tx, defs, ordering)
		if err != nil {
			return err
		}
		for _, change := range changes {
			if err := change(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
}

type change func(context.Context, pgx.Tx) error

func (s *Store) registryChanges(ctx context.Context, on queryer, defs []Definition, ordering keylinetype.Ordering) ([]change, error) {
	_, now, rows, err := s.readRegistry(ctx, on)
	if err != nil {
		return nil, err
	}
	var changes []change
	if ordering != "" && ordering != now {
		changes = append(changes, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, s.q("set_ordering"), ordering); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, s.q("wake_all"))
			return err
		})
	}
	taken, swept := make(map[int32]string, len(defs)), false
	for _, d := range defs {
		row, former := find(rows, d, defs)
		if row == nil {
			if heir := heirOf(rows, d, defs); heir != nil {
				return nil, fmt.Errorf("consumer %s: its previous name is one of %s, which goes on with its place; name that one, or none: %w",
					d.Name, heir.Name, keylinetype.ErrConflict)
			}
			status, sweep := begins(d)
			if sweep == sweepWake && swept {
				// One sweep passes every mailbox for all that begin in this change: they have no rows that would take
				// another.
				sweep = ""
			}
			swept = swept || sweep == sweepWake
			changes = append(changes, s.insertConsumer(d, status, sweep))
			continue
		}
		if other, ok := taken[row.ID]; ok {
			return nil, fmt.Errorf("consumers %s and %s are both the registered %s by their names: %w", other, d.Name, row.Name, keylinetype.ErrConflict)
		}
		taken[row.ID] = d.Name
		outdated, err := s.outdated(row, former, d)
		if err != nil {
			return nil, err
		}
		if !outdated && !(row.Name == d.Name && row.Revision == d.Revision) {
			changes = append(changes, s.updateConsumer(row, d))
		}
	}
	return changes, nil
}

// outdated says whether a row is to be left as it is because the code is older
// than it. former: the code knows it by a name that it had before.
//
// Changing what decides deliveries without raising the revision is refused.
func (s *Store) outdated(row *registered, former bool, d Definition) (bool, error) {
	switch {
	case row.Status == core.Retired:
		// An operator's act must not keep the other consumers of a process from starting.
		s.log.Warn("consumer is retired, which is final: it is not hosted", "consumer", row.Name)
		return true, nil
	case row.Revision > d.Revision || (former && row.Revision == d.Revision):
		s.log.Warn("consumer is registered with a newer revision: it is not hosted here", "consumer", row.Name,
			"registered", row.Revision, "carried", d.Revision)
		return true, nil
	case former:
		return false, fmt.Errorf("consumer %s: the name is a former one of %s; choose another: %w", d.Name, row.Name, keylinetype.ErrConflict)
	case row.Revision == d.Revision && !same(row, d):
		return false, fmt.Errorf("consumer %s: its definition differs from the registered one of the same revision %d; raise Revision: %w",
			d.Name, d.Revision, keylinetype.ErrConflict)
	}
	return false, nil
}

// find looks a definition up: by its name, by its previous ones, and among the
// names that rows had before, which is how code from before a renaming finds its own. former: the last.
// A name that another definition bears is not taken for a previous one.
func find(rows []registered, d Definition, defs []Definition) (row *registered, former bool) {
	byName := func(name string) *registered {
		for i := range rows {
			if rows[i].Name == name {
				return &rows[i]
			}
		}
		return nil
	}
	if row := byName(d.Name); row != nil {
		return row, false
	}
	for _, name := range d.PreviousNames {
		borne := slices.ContainsFunc(defs, func(other Definition) bool { return other.Name == name })
		if row := byName(name); row != nil && !borne {
			return row, false
		}
	}
	for i := range rows {
		if slices.Contains(rows[i].previousNames, d.Name) {
			return &rows[i], true
		}
	}
	return nil, false
}

// heirOf is who was renamed from a name that a new consumer says was its own: two were renamed from one, by two programs. Taken
// for new it would begin without its place, and nobody would be told.
func heirOf(rows []registered, d Definition, defs []Definition) *registered {
	for _, name := range d.PreviousNames {
		borne := slices.ContainsFunc(defs, func(other Definition) bool { return other.Name == name })
		i := slices.IndexFunc(rows, func(r registered) bool { return slices.Contains(r.previousNames, name) })
		if i >= 0 && !borne {
			return &rows[i]
		}
	}
	return nil
}

// same reports whether a row says what the code says, in all that decides
// deliveries, whatever it is called.
func same(r *registered, d Definition) bool {
	return slices.Equal(r.Types, d.Types) && slices.Equal(r.Versions, d.Versions) && (r.Versions == nil) == (d.Versions == nil) &&
		r.OnUnsupported == d.OnUnsupported && r.Effect == d.Effect && slices.Equal(delaysMillis(r.Retry), delaysMillis(d.Retry)) &&
		*r.Retry.Jitter == *d.Retry.Jitter && r.OnDead == d.OnDead && r.Scope == d.Scope && r.Transactional == d.Transactional &&
		r.ContractOnly == d.ContractOnly && r.Internal == d.Internal
}

// formerNames are all names that a consumer had, without its present one.
func formerNames(row *registered, d Definition) []string {
	names := append(slices.Concat(row.previousNames, d.PreviousNames), row.Name)
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == d.Name })
}

func delaysMillis(p keylinetype.RetryPolicy) []int64 {
	ms := make([]int64, len(p.Delays))
	for i, d := range p.Delays {
		ms[i] = d.Milliseconds()
	}
	return ms
}

// begins is how a new consumer begins, and with which sweep.
func begins(d Definition) (status core.Status, sweep string) {
	if d.Start.Kind == "" || d.Start.Kind == keylinetype.StartNow || d.ContractOnly {
		return core.Active, sweepWake
	}
	return core.Backfilling, sweepBackfill
}

func (s *Store) insertConsumer(d Definition, status core.Status, sweep string) change {
	return func(ctx context.Context, tx pgx.Tx) error {
		start := d.Start
		if start.Kind == "" {
			start.Kind = keylinetype.StartNow
		}
		if start.Kind != keylinetype.StartAt {
			start.Time = time.Time{}
		}
		_, err := tx.Exec(ctx, s.q("insert_consumer"), d.Name, notNil(d.PreviousNames), status, d.Revision, notNil(d.Types), d.Versions, d.OnUnsupported,
			start.Kind, optional(start.Time), d.Effect.Class, d.Effect.Note, delaysMillis(d.Retry), *d.Retry.Jitter,
			d.OnDead, d.Scope, d.Transactional, d.ContractOnly, d.Internal, unlessEmpty(sweep))
		return err
	}
}

func (s *Store) updateConsumer(row *registered, d Definition) change {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.q("update_consumer"), row.ID, d.Name, formerNames(row, d), d.Revision, notNil(d.Types), d.Versions, d.OnUnsupported,
			d.Effect.Class, d.Effect.Note, delaysMillis(d.Retry), *d.Retry.Jitter, d.OnDead, d.Scope, d.Transactional, d.ContractOnly, d.Internal)
		return err
	}
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// transitions are the status changes that an operator may ask for, with the
// sweep that each needs. Even a pause wakes: what held siblings back (scope) holds no more.
var transitions = map[core.Status]map[core.Status]string{
	core.Active:      {core.Paused: sweepWake, core.Disabled: sweepClear, core.Retired: sweepClear},
	core.Paused:      {core.Active: sweepWake, core.Disabled: sweepClear, core.Retired: sweepClear},
	core.Disabled:    {core.Active: sweepWake, core.Retired: sweepClear},
	core.Backfilling: {core.Disabled: sweepClear, core.Retired: sweepClear},
}

// SetStatus changes a consumer's status under the registry barrier, with the
// audit. ErrNotFound: no such consumer; ErrConflict: it has that status, or may not change to it, or an
// earlier change is still being carried out.
func (s *Store) SetStatus(ctx context.Context, name string, to core.Status, actor, reason string) error {
	return s.changeRegistry(ctx, func(tx pgx.Tx) error {
		_, _, rows, err := s.readRegistry(ctx, tx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(rows, func(r registered) bool { return r.Name == name })
		if i < 0 {
			return unknownConsumer(rows, name)
		}
		row := rows[i]
		sweep, ok := transitions[row.Status][to]
		if !ok {
			return fmt.Errorf("consumer %s is %s, it cannot become %s: %w", name, row.Status, to, keylinetype.ErrConflict)
		}
		if row.Status == core.Disabled && to == core.Active {
			var clearing bool
			if err := tx.QueryRow(ctx, s.q("clearing"), row.ID).Scan(&clearing); err != nil {
				return err
			}
			if clearing {
				return fmt.Errorf("consumer %s is still being disabled: %w", name, keylinetype.ErrConflict)
			}
		}
		if _, err := tx.Exec(ctx, s.q("set_status"), row.ID, to, sweep); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, s.q("audit"), actor, "consumer_"+string(to), name, reason, "{}")
		return err
	})
}

// unknownConsumer says whether it was renamed: an operator may know it by the name of before.
func unknownConsumer(rows []registered, name string) error {
	i := slices.IndexFunc(rows, func(r registered) bool { return slices.Contains(r.previousNames, name) })
	if i < 0 {
		return fmt.Errorf("consumer %s: %w", name, keylinetype.ErrNotFound)
	}
	return fmt.Errorf("consumer %s, which is called %s now: %w", name, rows[i].Name, keylinetype.ErrNotFound)
}

// changeRegistry runs f under the exclusive registry barrier, raises the epoch
// and commits at once. Sweeps come afterwards.
func (s *Store) changeRegistry(ctx context.Context, f func(pgx.Tx) error) error {
	err := clientsql.ChangeRegistry(ctx, s.lease, s.clock, s.rand, transient, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.q("barrier")); err != nil {
			return err
		}
		if err := f(tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.q("raise_epoch"))
		return err
	})
	return translate("change registry", err)
}
