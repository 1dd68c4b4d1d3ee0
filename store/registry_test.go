package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
	"github.com/keylinehq/keyline/store/clientsql"
)

func revision(n int) func(*Definition) { return func(d *Definition) { d.Revision = n } }

func (r *rig) registry() *core.Registry {
	r.Helper()
	reg, err := r.Registry(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return reg
}

// named finds a registered consumer, or nil.
func named(reg *core.Registry, name string) *core.Consumer {
	i := slices.IndexFunc(reg.Consumers, func(c *core.Consumer) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return reg.Consumers[i]
}

func TestARegisteredConsumerReadsBackAsItWasDeclared(t *testing.T) {
	r := newRig(t)
	if reg := r.registry(); len(reg.Consumers) != 0 || reg.Ordering != keylinetype.Independent {
		t.Fatalf("%+v", reg)
	}
	jitter := 0.25
	start := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	d := definition("c", revision(3), func(d *Definition) {
		d.Types, d.Versions, d.OnUnsupported = []string{"a.*", "b"}, []int{1, 3}, keylinetype.WaitUnsupported
		d.Start, d.Effect = keylinetype.At(start), keylinetype.External("the key is dropped")
		d.Retry = keylinetype.RetryPolicy{Delays: []time.Duration{time.Second, 90 * time.Minute}, Jitter: &jitter}
		d.OnDead, d.Scope, d.Transactional, d.Internal = keylinetype.Park, keylinetype.AllForOne, true, true
	})
	if err := r.Register(t.Context(), []Definition{d, definition("now")}, keylinetype.Lockstep); err != nil {
		t.Fatal(err)
	}
	reg := r.registry()
	c := named(reg, "c")
	if reg.Ordering != keylinetype.Lockstep || len(reg.Consumers) != 2 || c == nil {
		t.Fatalf("%+v", reg)
	}
	if c.Status != core.Backfilling || c.Revision != 3 || !slices.Equal(c.Types, d.Types) || !slices.Equal(c.Versions, d.Versions) ||
		c.OnUnsupported != d.OnUnsupported || c.Start.Kind != keylinetype.StartAt || !c.Start.Time.Equal(start) || c.Effect != d.Effect ||
		!slices.Equal(c.Retry.Delays, d.Retry.Delays) || *c.Retry.Jitter != jitter || c.OnDead != d.OnDead || c.Scope != d.Scope || !c.Transactional || !c.Internal {
		t.Errorf("%+v", c)
	}
	if c := named(reg, "now"); c.Status != core.Active || c.Versions != nil {
		t.Errorf("%+v", c)
	}
	epoch := r.epoch()
	if err := r.Register(t.Context(), []Definition{d, definition("now")}, keylinetype.Lockstep); err != nil || r.epoch() != epoch {
		t.Errorf("the same again: %v, epoch %d after %d", err, r.epoch(), epoch)
	}
}

func TestOnlyAHigherRevisionChangesAConsumer(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Local = map[string]Local{"c": {Revision: 2, Window: 7, BatchSize: 3}} })
	types := func(list ...string) func(*Definition) { return func(d *Definition) { d.Types = list } }
	id := r.register(definition("c", revision(2), types("a")))
	if c := named(r.registry(), "c"); !c.Hosted || c.Window != 7 || c.BatchSize != 3 {
		t.Errorf("the same revision is hosted: %+v", c)
	}
	if err := r.Register(t.Context(), []Definition{definition("c", revision(2), types("b"))}, ""); !errors.Is(err, keylinetype.ErrConflict) {
		t.Errorf("another definition of the same revision: %v", err)
	}
	if err := r.Register(t.Context(), []Definition{definition("c", revision(1), types("b"))}, ""); err != nil {
		t.Errorf("older code: %v", err)
	}
	if c := named(r.registry(), "c"); !slices.Equal(c.Types, []string{"a"}) || c.Revision != 2 {
		t.Errorf("overwritten: %+v", c)
	}
	epoch := r.epoch()
	r.register(definition("c", revision(3), types("b")))
	c := named(r.registry(), "c")
	if !slices.Equal(c.Types, []string{"b"}) || c.Revision != 3 || c.ID != id || r.epoch() != epoch+1 {
		t.Errorf("%+v, epoch %d after %d", c, r.epoch(), epoch)
	}
	if c.Hosted {
		t.Error("a process with the older revision hosts it")
	}
}

// Promise: a live worker whose code is older than the registered revision does not pass for one that runs the consumer.
func TestAWorkersRowSaysWhatItHosts(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Local = map[string]Local{"c": {Revision: 1}, "d": {Revision: 1}} })
	says := func(worker int64, want string) {
		t.Helper()
		if got := get[string](r, "select array_to_string(consumers, ' ') from keyline.workers where id = $1", worker); got != want {
			t.Errorf("worker %d says that it runs %q, want %q", worker, got, want)
		}
	}
	join := func() int64 {
		t.Helper()
		id, err := r.Join(t.Context(), core.Worker{Name: "w", Host: "h", PID: 1, Lease: time.Minute, Consumers: []string{"c", "d"}})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	r.register(definition("c"), definition("d"))
	first := join()
	says(first, "c d")
	r.registry()
	r.register(definition("c", revision(2)))
	r.registry()
	if err := r.Renew(t.Context(), first, nil); err != nil {
		t.Fatal(err)
	}
	says(first, "d")
	second := join()
	says(second, "d")
	if err := r.SetStatus(t.Context(), "d", core.Paused, "op", ""); err != nil {
		t.Fatal(err)
	}
	r.registry()
	if err := r.Renew(t.Context(), second, nil); err != nil {
		t.Fatal(err)
	}
	says(second, "d") // it would run it
}

func TestARenamedConsumerKeepsItsIdAndOlderCodeFindsIt(t *testing.T) {
	previously := func(names ...string) func(*Definition) { return func(d *Definition) { d.PreviousNames = names } }
	r := newRig(t, func(c *Config) { c.Local = map[string]Local{"a": {Revision: 1}} })
	id := r.register(definition("a"))
	if got := r.register(definition("b", previously("a"))); got != id {
		t.Fatalf("id %d, was %d", got, id)
	}
	// A process with the code from before starts once more.
	if err := r.Register(t.Context(), []Definition{definition("a")}, ""); err != nil {
		t.Fatal(err)
	}
	reg := r.registry()
	if len(reg.Consumers) != 1 || reg.Consumers[0].Name != "b" || reg.Consumers[0].Hosted {
		t.Errorf("%+v", reg.Consumers[0])
	}
	// Renamed again, by code that has forgotten the first name.
	if got := r.register(definition("c", previously("b"), revision(2))); got != id {
		t.Fatalf("id %d, was %d", got, id)
	}
	if err := r.Register(t.Context(), []Definition{definition("a")}, ""); err != nil || len(r.registry().Consumers) != 1 {
		t.Errorf("the oldest code: %v, %d consumers", err, len(r.registry().Consumers))
	}
	if err := r.Register(t.Context(), []Definition{definition("a", revision(9))}, ""); !errors.Is(err, keylinetype.ErrConflict) {
		t.Errorf("a new consumer under a former name: %v", err)
	}
	if err := r.Register(t.Context(), []Definition{definition("d", previously("c")), definition("e", previously("c"))}, ""); !errors.Is(err, keylinetype.ErrConflict) {
		t.Errorf("two heirs: %v", err)
	}
	// A name that another consumer of the same code bears is not a previous one.
	r.register(definition("c", revision(2), previously("b")), definition("f", previously("c")))
	if reg := r.registry(); named(reg, "c") == nil || named(reg, "c").ID != id || named(reg, "f") == nil {
		t.Errorf("%d consumers", len(reg.Consumers))
	}
}

func TestTwoRegistrarsAtOnceMakeOneConsumer(t *testing.T) {
	r := newRig(t)
	other := on(t, r.db)
	for round := range 5 {
		defs := []Definition{definition(keyOf(round)), definition(keyOf(round) + "x")}
		a := background(func() error { return r.Register(t.Context(), defs, "") })
		b := background(func() error { return other.Register(t.Context(), defs, "") })
		if err := errors.Join(soon(r, a, "a"), soon(r, b, "b")); err != nil {
			t.Fatal(err)
		}
		if n := len(r.registry().Consumers); n != 2*(round+1) {
			t.Fatalf("round %d: %d consumers", round, n)
		}
	}
}

func TestStatusesChangeOnlyAsTheyMayAndAreAudited(t *testing.T) {
	r := newRig(t)
	all := []core.Status{core.Active, core.Paused, core.Disabled, core.Backfilling, core.Retired}
	allowed := map[core.Status][]core.Status{
		core.Active: {core.Paused, core.Disabled, core.Retired}, core.Paused: {core.Active, core.Disabled, core.Retired},
		core.Disabled: {core.Active, core.Retired}, core.Backfilling: {core.Disabled, core.Retired},
	}
	r.register(definition("c"))
	for _, from := range all {
		for _, to := range all {
			r.exec("update keyline.consumers set status = $1, sweep = null", from)
			before := r.epoch()
			err := r.SetStatus(t.Context(), "c", to, "olga", "because")
			if may := slices.Contains(allowed[from], to); may != (err == nil) || (!may && !errors.Is(err, keylinetype.ErrConflict)) {
				t.Errorf("%s to %s: %v", from, to, err)
			}
			if changed := r.epoch() != before; changed != (err == nil) {
				t.Errorf("%s to %s: epoch changed: %v, %v", from, to, changed, err)
			}
		}
	}
	if err := r.SetStatus(t.Context(), "nobody", core.Paused, "olga", ""); !errors.Is(err, keylinetype.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if got := get[string](r, "select actor || ' ' || action || ' ' || target || ' ' || reason from keyline.audit order by id limit 1"); got != "olga consumer_paused c because" {
		t.Errorf("audit: %s", got)
	}
	if n := get[int64](r, "select count(*) from keyline.audit"); n != 10 {
		t.Errorf("%d entries", n)
	}
}

func TestARetiredConsumerStaysSoAndKeepsNobodyFromStarting(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Local = map[string]Local{"c": {Revision: 9}} })
	r.register(definition("c"))
	if err := r.SetStatus(t.Context(), "c", core.Retired, "op", ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Register(t.Context(), []Definition{definition("c", revision(9)), definition("d")}, ""); err != nil {
		t.Fatal(err)
	}
	reg := r.registry()
	if c := named(reg, "c"); c.Status != core.Retired || c.Revision != 1 || c.Hosted || named(reg, "d") == nil {
		t.Errorf("%+v", c)
	}
}

func TestARegistryChangeWaitsForNoOpenAppendAndKeepsNoFlush(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.opened("r") // stays open
	other := r.load(r.claimOne(r.append("other")))
	changed := background(func() error { return r.SetStatus(t.Context(), "c", core.Paused, "op", "") })
	if err := soon(r, changed, "change"); err != nil {
		t.Fatal(err)
	}
	r.sweepAll()
	if res := r.flush1(settle(other)); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
}

func TestARegistryChangeThatMeetsALongFlushStepsBackAndComesAgain(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r")))
	long := r.begin() // a flush that does not end
	r.in(long, "select pg_advisory_xact_lock_shared(keyline.barrier_key())")
	changed := background(func() error { return r.SetStatus(t.Context(), "c", core.Paused, "op", "") })
	r.blocked("barrier_key")
	// While it waits, another flush queues behind it, but not for longer than its lock time-out.
	if res := r.flush1(settle(l)); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
	r.rollbackTx(long)
	if err := soon(r, changed, "change"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBoom)
	if err := r.SetStatus(ctx, "c", core.Active, "op", ""); err == nil {
		t.Error("changed under a context that has ended")
	}
}

// Who holds the barrier holds up all flushes, over several round trips: a process that is frozen in the middle, or that the
// network has lost, is not waited for.
func TestARegistryChangeThatFallsSilentHoldsUpFlushesForAMomentOnly(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r")))
	held, flushed := make(chan struct{}), make(chan struct{})
	changed := background(func() error {
		return r.changeRegistry(t.Context(), func(tx pgx.Tx) error {
			close(held)
			timer := clock.Real().NewTimer(4 * clientsql.Silence)
			defer timer.Stop()
			select {
			case <-flushed:
			case <-timer.C(): // the flush waits for this
			}
			_, err := tx.Exec(t.Context(), "select 1")
			return err
		})
	})
	<-held
	if res := r.flush1(settle(l)); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
	close(flushed)
	if err := soon(r, changed, "change"); !errors.Is(err, keylinetype.ErrUnavailable) {
		t.Errorf("the silent one meets %v", err)
	}
	if err := r.SetStatus(t.Context(), "c", core.Paused, "op", ""); err != nil {
		t.Error(err)
	}
}

// Consumers that begin together are swept for together: none of them has a row that would take a sweep of its own.
func TestConsumersThatBeginTogetherTakeOneSweep(t *testing.T) {
	r := newRig(t)
	r.register(definition("old"))
	r.sweepAll()
	id := r.append("r")
	hide := func() {
		r.exec("update keyline.mailboxes set due_at = 'infinity', wants = '{1}', wants_due_at = 'infinity'")
	}
	sweeps := func() int64 { return get[int64](r, "select count(*) from keyline.consumers where sweep is not null") }
	hide()
	r.register(definition("a"), definition("b"), definition("past", from(keylinetype.Beginning())), definition("c"))
	if n := sweeps(); n != 2 {
		t.Errorf("%d sweeps, want one for those that begin now, and one for the other", n)
	}
	if more, err := r.Sweep(t.Context()); !more || err != nil || r.mailbox(id) != "due" || sweeps() != 1 {
		t.Errorf("after one chunk: mailbox %q, %d sweeps, %v", r.mailbox(id), sweeps(), err)
	}
	r.sweepAll()
	// What an operator does to the one that has the sweep takes it from nobody.
	for _, to := range []core.Status{core.Disabled, core.Retired, core.Paused} {
		hide()
		first, second := "first "+string(to), "second "+string(to)
		r.register(definition(first), definition(second))
		r.setStatus(first, to)
		r.sweepAll()
		if r.mailbox(id) != "due" || sweeps() != 0 {
			t.Errorf("%s: mailbox %q, %d sweeps", to, r.mailbox(id), sweeps())
		}
	}
}
