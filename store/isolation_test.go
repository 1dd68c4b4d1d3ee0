package store

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

func TestWithTheRolesDefaultAtRepeatableReadEverythingWorks(t *testing.T) {
	r := newRig(t)
	r.exec("alter database " + r.db.Name + " set default_transaction_isolation = 'repeatable read'")
	w := on(t, r.db)
	if got := func() (v string) { _ = w.hot.QueryRow(t.Context(), "show transaction_isolation").Scan(&v); return }(); got != "repeatable read" {
		t.Fatalf("the default is %s", got)
	}
	level := make(chan string, 9)
	c := w.register(definition("c", func(d *Definition) { d.Transactional = true }))
	w.sweepAll()
	l := w.load(w.claimOne(w.append("r")))
	w.flush1(core.Flush{Record: l.Record, Token: l.Token, Head: 1, Upserts: []core.Checkpoint{{Record: l.Record, Consumer: c, State: core.Ready}}})
	out := w.RunTx(t.Context(), core.Work{Record: l.Record, Token: l.Token, Consumer: &core.Consumer{ID: c}}, readLevel(level), completed(l.Record, c, 1))
	if out.Err != nil || out.Booked == nil {
		t.Fatalf("%+v", out)
	}
	if got := <-level; got != "read committed" {
		t.Errorf("HandleTx runs at %s", got)
	}
	// The settle race at its worst step: the snapshot must be newer than the lock.
	tx := w.opened("r")
	if res := w.flush1(settle(l)); !res.Busy {
		t.Errorf("%+v", res)
	}
	w.commitTx(tx)
	if res := w.flush1(settle(l)); res.Status != core.FlushKept || res.Head != 2 {
		t.Errorf("%+v", res)
	}
	if _, err := w.Recover(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.SetStatus(t.Context(), "c", core.Paused, "op", ""); err != nil {
		t.Error(err)
	}
	// A flush that waits for the barrier sees the epoch that the change has made.
	barrier, err := w.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{w.q("barrier"), w.q("raise_epoch")} {
		if _, err := barrier.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan core.FlushResult, 1)
	w.Flush(settle(l), w.epoch(), func(res core.FlushResult) { got <- res })
	w.blocked(".flush(")
	w.commitTx(barrier)
	if res := soon(w, got, "flush"); res.Status != core.FlushEpoch {
		t.Errorf("%+v", res)
	}
}
