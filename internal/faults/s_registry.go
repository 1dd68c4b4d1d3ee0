package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

var registry = []scenario{
	{"44", "repeatable read is the role's default", isolation},
	{"46", "the registry changes while an appender stays open", registryBesideAppender},
	{"49", "backfill while appenders hold records", backfill},
	{"50", "a consumer is paused while it runs, resumed elsewhere", pausedWhileRunning},
	{"33a", "an operator pauses and resumes from two terminals at once", twoOperators},
}

func registryBesideAppender(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	s := t.store()
	tx := t.begin()
	t.appendIn(tx, "held", nil)
	for i := range 5 {
		began := t.house.clock.Mono()
		t.must(s.SetStatus(t.ctx, "b", core.Paused, "op", ""), "pause")
		t.append(fmt.Sprintf("r%d", i), nil)
		t.must(s.SetStatus(t.ctx, "b", core.Active, "op", ""), "resume")
		if d := t.house.clock.Mono() - began; d > 5*time.Second {
			t.fail("two registry changes beside an open transaction took %s", d)
		}
		t.awaitDone(fmt.Sprintf("r%d", i), 2, 10*time.Second)
	}
	t.must(tx.Commit(t.ctx), "commit")
	t.awaitDone("held", 2, 10*time.Second)
	t.check(allow{})
}

func backfill(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a"}})
	for i := range 60 {
		t.append(fmt.Sprintf("r%d", i%20), nil)
	}
	t.awaitDone("r%", 60, 30*time.Second)
	tx, other := t.begin(), t.begin()
	for i := range 5 {
		t.appendIn(tx, fmt.Sprintf("r%d", i), nil)
		t.appendIn(other, fmt.Sprintf("r%d", 10+i), nil)
	}
	t.appendIn(other, "new", nil)
	t.start(spec{Name: "w2", Consumers: []string{"late", "txlate"}, Begin: true})
	t.pause(3 * time.Second)
	for i := range 20 {
		if i >= 5 && i < 10 || i >= 15 {
			t.append(fmt.Sprintf("r%d", i), nil)
		}
	}
	t.must(tx.Commit(t.ctx), "commit")
	t.pause(2 * time.Second)
	t.must(other.Rollback(t.ctx), "roll back")
	t.eventually("the backfill ends", 60*time.Second, func() bool {
		return t.number("select count(*) from keyline.consumers where status = 'active' and sweep is null") == 3
	})
	t.check(allow{})
	if n := t.number("select count(*) from crm.delivered_log where mark = 'done' and consumer = 'late'"); n != 75 {
		t.fail("%d deliveries of the late consumer, want 75", n)
	}
}

func pausedWhileRunning(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	s := t.store()
	t.append("r", do{"gate": "g", "only": "a"})
	t.running("r", 1)
	t.must(s.SetStatus(t.ctx, "a", core.Paused, "op", ""), "pause")
	t.append("r", nil)
	t.awaitDone("r", 2, 20*time.Second)
	t.start(spec{Name: "w2", Consumers: []string{"a", "b"}})
	t.pause(2 * time.Second)
	t.must(s.SetStatus(t.ctx, "a", core.Active, "op", ""), "resume")
	t.appendN("r", 2)
	t.awaitDone("r", 4, 20*time.Second)
	t.pause(2 * time.Second)
	t.gate("g")
	t.awaitDone("r", 8, 30*time.Second)
	t.check(allow{})
	_ = w1
}

func isolation(t *stage) {
	t.open()
	t.exec("create role reader superuser login password 'x'")
	t.onEnd(func() { _, _ = t.pool.Exec(t.ctx, "drop role if exists reader") })
	t.exec("alter database " + t.name + " set default_transaction_isolation = 'repeatable read'")
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	s := t.store()
	stop := t.load(10)
	for range 4 {
		t.pause(500 * time.Millisecond)
		t.must(s.SetStatus(t.ctx, "b", core.Paused, "op", ""), "pause")
		t.pause(500 * time.Millisecond)
		t.must(s.SetStatus(t.ctx, "b", core.Active, "op", ""), "resume")
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{})
}

func twoOperators(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	one, two := t.store(), t.store()
	errs := make(chan error, 2)
	stop := t.load(10)
	for _, s := range []*store.Store{one, two} {
		go func() {
			for range 10 {
				for _, to := range []core.Status{core.Paused, core.Active} {
					if err := s.SetStatus(t.ctx, "b", to, "op", ""); err != nil && !errors.Is(err, keyline.ErrConflict) {
						errs <- err
						return
					}
				}
			}
			errs <- nil
		}()
	}
	t.must(<-errs, "change the registry")
	t.must(<-errs, "change the registry")
	t.found["appended_under_load"] = stop()
	if t.number("select count(*) from keyline.consumers where status = 'paused'") > 0 {
		t.must(one.SetStatus(t.ctx, "b", core.Active, "op", ""), "resume")
	}
	t.check(allow{})
}
