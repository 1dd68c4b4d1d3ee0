package main

import (
	"fmt"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

var operators = []scenario{
	{"34", "every command that reports success has changed something", actsShow},
	{"51", "commands race settling", commandsRace},
	{"52", "a dead letter's retry waits while its record goes on", deadRetry},
}

func (t *stage) store() *store.Store {
	cfg := t.pool.Config()
	s, err := store.Open(t.ctx, store.Config{Pool: cfg})
	t.must(err, "open a store")
	t.onEnd(s.Close)
	return s
}

// command gives a command, and waits until it is applied.
func (t *stage) command(c core.Command, target string) {
	o, err := store.NewOperate(t.pool, "")
	t.must(err, "operate")
	given, err := o.Give(t.ctx, c, target)
	t.must(err, "command")
	_, err = o.Await(t.ctx, given.ID)
	t.must(err, "await the command")
}

func commandsRace(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Delay: time.Hour, Attempts: 3})
	s := t.store()
	for i := range 40 {
		r := fmt.Sprintf("r%d", i)
		t.append(r, do{"first": 1, "only": "a"})
		t.running(r, 1)
		t.pause(time.Duration(i*2) * time.Millisecond)
		if i%2 == 0 {
			t.append(r, nil)
		}
		record, err := s.FindRecord(t.ctx, keyline.Key{Record: r})
		t.must(err, "find the record")
		consumer, err := s.FindConsumer(t.ctx, "a")
		t.must(err, "find the consumer")
		t.eventually("the retry is taken", 20*time.Second, func() bool {
			t.command(core.Command{Record: record, Kind: core.CommandRetry, Consumer: consumer, Actor: "op"}, r)
			return t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a' and record_key = $1 and seq = 1", r) >= 2
		})
	}
	t.check(allow{})
}

func deadRetry(t *stage) {
	t.open()
	w := t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Attempts: 2, Delay: 3 * time.Second})
	s := t.store()
	t.append("r", do{"first": 3, "only": "a"})
	t.append("r", nil)
	t.eventually("it is dead-lettered", 30*time.Second, func() bool { return t.number("select count(*) from keyline.dead_letters where status = 'open'") == 1 })
	record, err := s.FindRecord(t.ctx, keyline.Key{Record: "r"})
	t.must(err, "find the record")
	letter := int64(t.number("select id from keyline.dead_letters"))
	consumer, err := s.FindConsumer(t.ctx, "a")
	t.must(err, "find the consumer")
	t.command(core.Command{Record: record, Kind: core.CommandRetryDead, Consumer: consumer, Seq: 1, DeadLetter: letter, Actor: "op"}, "r")
	t.eventually("the retry fails once", 20*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a' and seq = 1") == 3
	})
	t.append("r", nil) // its record goes on, and settles but for the retry
	t.awaitDone("r", 5, 10*time.Second)
	w.kill()
	t.start(spec{Name: "w2", Consumers: []string{"a", "b"}, Attempts: 2, Delay: 3 * time.Second})
	t.append("r", nil)
	t.eventually("the retry runs", 30*time.Second, func() bool {
		return t.number("select count(*) from keyline.dead_letters where status = 'delivered'") == 1
	})
	t.eventually("everything settles", 30*time.Second, func() bool { return t.try("select count(*) from keyline.mailboxes") == 0 })
	if n := t.done("r"); n != 8 {
		t.fail("%d deliveries, want 8", n)
	}
}
