package store

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

// inSchema opens a store on another schema of a rig's database.
func (r *rig) inSchema(schema string) *rig {
	r.Helper()
	if _, _, err := migrations.Up(r.Context(), r.db.Connect(), schema); err != nil {
		r.Fatal(err)
	}
	pool, err := pgxpool.ParseConfig(r.db.URL)
	if err != nil {
		r.Fatal(err)
	}
	s, err := Open(r.Context(), Config{Pool: pool, Schema: schema, Logger: logger(r.T)})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(s.Close)
	other := &rig{T: r.T, Store: s, db: r.db, pool: r.pool}
	other.me = other.join("w")
	s.SetWorker(other.me)
	return other
}

// everyTable says how many rows each table of the schema has.
func (r *rig) everyTable() (counts map[string]int) {
	r.Helper()
	counts = map[string]int{}
	for _, table := range get[[]string](r, "select array_agg(tablename::text) from pg_tables where schemaname = '"+r.Schema()+"'") {
		counts[table] = get[int](r, "select count(*) from keyline."+table)
	}
	return counts
}

// life does a bit of all that the store can do.
func (r *rig) life() {
	r.Helper()
	ctx := r.Context()
	c := r.register(definition("c", func(d *Definition) { d.Transactional = true }))
	r.sweepAll()
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	r.flush1(core.Flush{Record: l.Record, Token: l.Token, Head: 2, Upserts: []core.Checkpoint{{Consumer: c, State: core.Ready}}})
	out := r.RunTx(ctx, &core.Work{Record: l.Record, Token: l.Token, Consumer: &core.Consumer{ID: c}},
		func(context.Context, pgx.Tx) error { return nil }, completed(l.Record, c, 1))
	if out.Err != nil || out.Booked == nil {
		r.Fatalf("%+v", out)
	}
	if res := r.flush1(everything(l, c)); res.Status != core.FlushKept {
		r.Fatalf("%+v", res)
	}
	cmd, err := r.Command(ctx, core.Command{Record: l.Record, Kind: core.CommandRetry, Actor: "op"}, "r")
	if err != nil {
		r.Fatal(err)
	}
	if res := r.flush1(settle(l)); !res.Pending {
		r.Errorf("%+v", res)
	}
	f := settle(l)
	f.Applied = []core.AppliedCommand{{ID: cmd, Done: true}}
	if res := r.flush1(f); res.Status != core.FlushGone {
		r.Errorf("%+v", res)
	}
	r.setStatus("c", core.Paused)
	r.sweepAll()
	lost := r.join("lost")
	r.append("other")
	if got := r.claims(lost, 10); len(got) != 1 {
		r.Errorf("claimed %v", got)
	}
	if marked, err := r.MarkLost(ctx, r.beat(lost)); !marked || err != nil {
		r.Error(marked, err)
	}
	if n, err := r.Recover(ctx); n != 1 || err != nil {
		r.Error(n, err)
	}
	if err := r.Renew(ctx, r.me, nil); err != nil {
		r.Error(err)
	}
}

func TestAllWorksInASchemaOfAnotherName(t *testing.T) {
	t.Parallel()
	r := on(t, testdb.New(t, testdb.WithSchema("elsewhere")))
	r.life()
}

func TestTwoInstallationsInOneDatabaseDoNotMeet(t *testing.T) {
	r := newRig(t)
	other := r.inSchema("second")
	before := r.everyTable()
	other.life()
	for table, n := range r.everyTable() {
		if n != before[table] {
			t.Errorf("%s of the other installation has %d rows, had %d", table, n, before[table])
		}
	}
	// What is locked in the one is free in the other: the registry's barrier, the
	// sleep lock, the seat.
	l := r.load(r.claimOne(r.append("r")))
	gate := r.begin()
	for _, key := range []string{"barrier_key", "arm_key", "seat_key"} {
		r.in(gate, "select pg_advisory_xact_lock(second."+key+"())")
	}
	if res := r.flush1(settle(l)); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
	r.register(definition("c"))
	if r.Channel() == other.Channel() {
		t.Errorf("both listen to %s", r.Channel())
	}
	// The other's sleeper is nobody that this one's appenders notify.
	listening := r.db.Connect()
	for _, channel := range []string{r.Channel(), other.Channel()} {
		if _, err := listening.Exec(t.Context(), "listen "+channel); err != nil {
			t.Fatal(err)
		}
	}
	r.append("r")
	other.append("r")
	n, err := listening.WaitForNotification(t.Context())
	if err != nil || n.Channel != other.Channel() {
		t.Errorf("%+v, %v", n, err)
	}
}
