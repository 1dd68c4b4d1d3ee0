package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

func TestACommandIsWrittenWithItsAuditAndItsRecordIsDue(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.settled("r", 1, 1)
	id := r.record("r0")
	cmd, err := r.Command(t.Context(), core.Command{Record: id, Kind: core.CommandSkip, Consumer: c, Seq: 1, Actor: "olga", Reason: "why"}, "r0 of c")
	if err != nil {
		t.Fatal(err)
	}
	if r.mailbox(id) != "due" {
		t.Errorf("mailbox %q", r.mailbox(id))
	}
	if got := get[string](r, "select actor || ' ' || action || ' ' || target || ' ' || reason || ' ' || (detail ->> 'command') from keyline.audit"); got != "olga skip r0 of c why "+itoa(cmd) {
		t.Errorf("audit: %s", got)
	}
	claim := r.claimOne(id)
	l := r.load(claim)
	if len(l.Commands) != 1 || l.Commands[0].Kind != core.CommandSkip || l.Commands[0].Consumer != c || l.Commands[0].Seq != 1 {
		t.Fatalf("%+v", l.Commands)
	}
	awaited := background(func() error {
		out, err := r.operate().Await(t.Context(), cmd)
		if err == nil && (out.ID != cmd || out.Done || out.Detail != "nothing to do") {
			t.Errorf("%+v", out)
		}
		return err
	})
	f := settle(l)
	f.Applied = []core.AppliedCommand{{ID: cmd, Detail: "nothing to do"}}
	if res := r.flush1(f); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
	if err := soon(r, awaited, "outcome"); err != nil {
		t.Error(err)
	}
}

func TestACommandThatArrivesWhileARecordIsClaimedIsSeenBeforeItEnds(t *testing.T) {
	r := newRig(t)
	l := r.load(r.claimOne(r.append("r")))
	cmd, err := r.Command(t.Context(), core.Command{Record: l.Record, Kind: core.CommandRetry, Actor: "op"}, "r")
	if err != nil || r.mailbox(l.Record) != "claimed" {
		t.Fatal(err, r.mailbox(l.Record))
	}
	if res := r.flush1(settle(l)); !res.Pending {
		t.Errorf("%+v", res)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.operate().Await(ctx, cmd); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody has applied it: %v", err)
	}
	// Given up without a look: whoever claims next finds it.
	if res := r.flush1(core.Flush{Record: l.Record, Token: l.Token, Head: 1, Then: core.Release}); res.Status != core.FlushGone {
		t.Errorf("%+v", res)
	}
	if l := r.load(r.claimOne(l.Record)); len(l.Commands) != 1 || l.Commands[0].ID != cmd {
		t.Errorf("%+v", l.Commands)
	}
}

func TestCommandsThatCannotBeAreRefused(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	for name, tc := range map[string]struct {
		c    core.Command
		want error
	}{
		"no actor":       {core.Command{Record: id, Kind: core.CommandRetry}, keylinetype.ErrInvalid},
		"no record":      {core.Command{Record: 999, Kind: core.CommandRetry, Actor: "op"}, keylinetype.ErrNotFound},
		"unknown kind":   {core.Command{Record: id, Kind: "dance", Actor: "op"}, keylinetype.ErrInvalid},
		"no dead letter": {core.Command{Record: id, Kind: core.CommandRetryDead, Actor: "op"}, keylinetype.ErrInvalid},
	} {
		if _, err := r.operate().Give(t.Context(), tc.c, "r"); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := get[int64](r, "select (select count(*) from keyline.commands) + (select count(*) from keyline.audit)"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	if _, err := r.operate().Await(t.Context(), 12345); !errors.Is(err, keylinetype.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestFindsWhatThereIsAndSaysWhatThereIsNot(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	id := r.append("r", "t1", "t2")
	event := get[uuid.UUID](r, "select id from keyline.events where seq = 2")
	if got, err := r.FindConsumer(t.Context(), "c"); got != c || err != nil {
		t.Error(got, err)
	}
	if got, err := r.FindEvent(t.Context(), event); err != nil || got != (EventPlace{Record: id, Seq: 2, Key: keylinetype.Key{Record: "r"}, Type: "t2"}) {
		t.Errorf("%+v, %v", got, err)
	}
	_, a := r.FindConsumer(t.Context(), "x")
	_, b := r.FindEvent(t.Context(), uuid.New())
	_, d := r.FindRecord(t.Context(), keylinetype.Key{Tenant: "other", Record: "r"})
	for i, err := range []error{a, b, d} {
		if !errors.Is(err, keylinetype.ErrNotFound) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestDeadLettersAreListedByWhateverIsAsked(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"), definition("d"))
	r.append("r", "t", "t", "t")
	r.append("other")
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at, status, resolved_at, resolved_by)
		select e.record_id, e.seq, c.id, e.id, 4, 'exhausted', 'boom', now(), now(), case when e.seq = 2 then 'resolved' else 'open' end, case when e.seq = 2 then now() end, 'op'
		from keyline.events e, keyline.consumers c where c.name = 'c' or e.seq = 1 order by e.record_id, e.seq, c.id`)
	page := func(q DeadQuery, below int64, limit int) []DeadLetterRow {
		rows, err := r.operate().DeadLetters(t.Context(), q, below, limit)
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; i < len(rows); i++ {
			if rows[i].ID >= rows[i-1].ID {
				t.Errorf("not the newest first: %d, %d", rows[i-1].ID, rows[i].ID)
			}
		}
		return rows
	}
	empty, elsewhere, record, other := "", "elsewhere", "r", "other"
	for name, tc := range map[string]struct {
		q    DeadQuery
		want int
	}{
		"all": {DeadQuery{}, 6}, "consumer": {DeadQuery{Consumer: "c"}, 4}, "the other": {DeadQuery{Consumer: "d"}, 2},
		"record": {DeadQuery{Record: &other}, 2}, "status": {DeadQuery{Statuses: []string{"open", "retrying"}}, 5},
		"tenant": {DeadQuery{Tenant: &empty}, 6}, "another tenant": {DeadQuery{Tenant: &elsewhere}, 0},
		"code": {DeadQuery{Code: "boom"}, 6}, "another code": {DeadQuery{Code: "bang"}, 0},
	} {
		if got := page(tc.q, 0, 0); len(got) != tc.want {
			t.Errorf("%s: %d rows", name, len(got))
		}
	}
	first := page(DeadQuery{}, 0, 4)
	if rest := page(DeadQuery{}, first[3].ID, 0); len(first) != 4 || len(rest) != 2 {
		t.Errorf("pages of %d and %d rows", len(first), len(rest))
	}
	got := page(DeadQuery{Record: &record, Statuses: []string{"resolved"}}, 0, 0)[0]
	if got.Key != "r" || got.Seq != 2 || got.Consumer != "c" || got.Type != "t" || got.ResolvedBy != "op" || got.ResolvedAt == nil || got.Reason != "exhausted" {
		t.Errorf("%+v", got)
	}
}
