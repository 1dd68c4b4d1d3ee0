package store

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline/internal/testdb"
)

// Promise: a lock on the mailboxes, for which all looks wait, costs no worker its lease.
func TestRenewalsDoNotWaitForALockOnTheMailboxes(t *testing.T) {
	r := newRig(t)
	gate := r.begin()
	r.in(gate, "lock table keyline.mailboxes in access exclusive mode")
	looked := background(func() error { _, err := r.Beats(t.Context()); return err })
	swept := background(func() error { _, err := r.HandBackOrphans(t.Context(), r.me, nil); return err })
	testdb.Eventually(r, func() bool {
		return get[int64](r, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == 2
	}, "both looks to wait")
	renewed := background(func() error { return r.Renew(t.Context(), r.me, nil) })
	if err := soon(r, renewed, "a renewal"); err != nil {
		t.Error(err)
	}
	r.commit(gate)
	if err := errors.Join(soon(r, looked, "the look for lost workers"), soon(r, swept, "the look for orphans")); err != nil {
		t.Error(err)
	}
}

// Promise: a session that was begun while the database was read-only is not kept, however long it would live.
func TestAReadOnlySessionIsReplaced(t *testing.T) {
	r := newRig(t)
	keeper, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Release()
	alter := func(how string) {
		t.Helper()
		if _, err := keeper.Exec(t.Context(), "alter database "+r.db.Name+how+"set default_transaction_read_only"+map[string]string{" ": " = on", " re": ""}[how]); err != nil {
			t.Fatal(err)
		}
	}
	alter(" ")
	if _, err := keeper.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", r.ApplicationName()); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(r, func() bool {
		refused := (*pgconn.PgError)(nil)
		return errors.As(r.Renew(t.Context(), r.me, nil), &refused) && refused.Code == stateReadOnly
	}, "a renewal in a new session to be refused")
	alter(" re")
	for try := 1; ; try++ { // one for each session that there may be
		if err = r.Renew(t.Context(), r.me, nil); err == nil {
			break
		}
		if try == 4 {
			t.Fatal(err)
		}
	}
}

// Promise: keys are the same texts whatever encoding the role or the database has by default.
func TestADefaultEncodingChangesNoText(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const key = "größe: 3 €"
	if _, err := db.Pool().Exec(t.Context(), "select from keyline.append($1::text, 't', jsonb_build_object('key', $1::text))", key); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool().Exec(t.Context(), "alter database "+db.Name+" set client_encoding = 'LATIN1'"); err != nil {
		t.Fatal(err)
	}
	r := on(t, db)
	l := r.load(r.claimOne(r.record(key)))
	if l.Key != key || len(l.Events) != 1 || string(l.Events[0].Payload) != `{"key": "`+key+`"}` {
		t.Errorf("%+v", l)
	}
}
