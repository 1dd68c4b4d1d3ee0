package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"

	"github.com/keylinehq/keyline/internal/clock"
)

// outwaits is how many tries of one call wait for as long as the server takes to end an autovacuum that is in the way. One that
// is there to prevent a wraparound is not ended: then it was for nothing, and the others have waited behind it.
const outwaits = 5

// migrate goes from version to version, and tries each step until nobody holds what it has to lock. from is the version that it began at.
func (r release) migrate(ctx context.Context, conn *pgx.Conn, list []*migrate.Migration, schema string, to int32) (from int32, err error) {
	if to < 0 || to > latestOf(list) {
		return 0, fmt.Errorf("version %d is none of 0 to %d", to, latestOf(list))
	}
	timeout, left, moved := r.lockTimeout, outwaits, false
	for began := r.clock.Mono(); ; {
		current, err := version(ctx, conn, schema)
		switch {
		case err != nil:
			return 0, err
		case current > latestOf(list): // since another release has just migrated
			return 0, fmt.Errorf("version %d, known %d: %w", current, latestOf(list), ErrNewer)
		case !moved:
			from = current
		}
		if current == to {
			return from, nil
		}
		name, sql := step(list, schema, current, to)
		switch err := message(ctx, conn, sql); {
		case err == nil:
			moved = true
			continue
		case sqlState(err) == stateMoved:
			continue
		case sqlState(err) != stateLockNotAvailable:
			return 0, fmt.Errorf("%s: %w", name, err)
		case r.clock.Mono()-began >= r.patience:
			return 0, fmt.Errorf("%w: %s: %w", ErrBusy, name, err)
		}
		if err := clock.Sleep(ctx, r.clock, r.pause); err != nil {
			return 0, err
		}
		next := r.lockTimeout
		if left > 0 {
			wait, err := vacuumed(ctx, conn, schema)
			if err != nil {
				return 0, err
			}
			if wait > 0 {
				next, left = next+wait, left-1
			}
		}
		hurry(list, timeout, next)
		timeout = next
	}
}

// The SQLSTATEs that a step is tried again at: it waited for too long for a lock; and another migrator was faster.
const (
	stateLockNotAvailable = "55P03"
	stateMoved            = "40001"
)

func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

func latestOf(list []*migrate.Migration) int32 { return int32(len(list)) }

func version(ctx context.Context, conn *pgx.Conn, schema string) (v int32, err error) {
	err = conn.QueryRow(ctx, `select version from `+versionTable(schema)).Scan(&v)
	return v, err
}

// message sends several statements as one message. They are one transaction by what they say themselves, so that the server, once it
// has them all, waits for nobody in the middle of it: a migrator that is killed, frozen or lost to the network leaves no lock behind.
func message(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil && !conn.IsClosed() {
		_, rollback := conn.Exec(context.WithoutCancel(ctx), "rollback")
		err = errors.Join(err, rollback)
	}
	return err
}

// migrators is the lock of whoever migrates anything in this database. Other programs that migrate with tern's library take the same.
const migrators = 9628173550095224

// step is the SQL of the next step on the way from one version to another. It is a migration and its version, or nothing: where the
// version is not the one that it goes from any more, it fails with stateMoved.
func step(list []*migrate.Migration, schema string, from, to int32) (name, sql string) {
	next := from + 1
	if from > to {
		next = from - 1
	}
	m := list[min(from, next)]
	sql = m.UpSQL
	if from > to {
		sql = m.DownSQL
	}
	return m.Name, fmt.Sprintf(`begin isolation level read committed;
select pg_catalog.pg_advisory_xact_lock(%[1]d);
do $keyline$ begin
  if (select v.version from %[2]s v) <> %[3]d then
    raise exception 'another migrator was faster' using errcode = '%[4]s';
  end if;
end $keyline$;
%[5]s
update %[2]s set version = %[6]d;
commit;`, migrators, versionTable(schema), from, stateMoved, sql, next)
}

// createSchema is the SQL that makes the schema with the version table in it. "if not exists" alone is not safe
// against another session doing the same.
func createSchema(schema string) string {
	return fmt.Sprintf(`begin isolation level read committed;
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('keyline schema %[1]s', 0));
create schema if not exists %[1]s;
do $keyline$ begin
  if pg_catalog.to_regclass('%[2]s') is null then
    create table %[2]s(version int4 not null);
  end if;
  if not exists (select from %[2]s) then
    insert into %[2]s(version) values (0);
  end if;
end $keyline$;
commit;`, schema, versionTable(schema))
}

// hurry gives the migrations another lock_timeout than the one that they have; 0: none.
func hurry(list []*migrate.Migration, old, now time.Duration) {
	line := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return fmt.Sprintf("set local lock_timeout = %d; -- ms: whoever comes later waits behind this\n", d.Milliseconds())
	}
	for _, one := range list {
		one.UpSQL = line(now) + strings.TrimPrefix(one.UpSQL, line(old))
		one.DownSQL = line(now) + strings.TrimPrefix(one.DownSQL, line(old))
	}
}

// vacuumed looks whether an autovacuum holds a table of the schema, and returns how long somebody has to wait for it before the
// server ends it; 0: there is none. Whoever waits for less waits for its whole run, which may be hours.
func vacuumed(ctx context.Context, conn *pgx.Conn, schema string) (time.Duration, error) {
	var ms int64
	// The rows of others' sessions show no backend_type to those who own no more than the schema; an autovacuum's has no user.
	err := conn.QueryRow(ctx, `select s.setting::bigint * exists (
		select from pg_catalog.pg_locks l
		join pg_catalog.pg_class c on c.oid = l.relation
		join pg_catalog.pg_stat_activity a on a.pid = l.pid
		where l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
		  and c.relnamespace = $1::text::regnamespace and l.granted and l.mode = 'ShareUpdateExclusiveLock' and a.usesysid is null)::integer
		from pg_catalog.pg_settings s where s.name = 'deadlock_timeout'`, schema).Scan(&ms)
	if err != nil {
		return 0, fmt.Errorf("look for an autovacuum: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}
