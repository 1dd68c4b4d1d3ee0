package keyline_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestBulkActsTakeWhatTheFilterTakesAndNoPageEndsThem(t *testing.T) {
	t.Parallel()
	const records = 230 // more than two pages
	db, s := testdb.New(t), newSwitched()
	startWorker(t, db, keyline.Config{}, s.consumer("c", func(c *keyline.Consumer) { c.Breaker.Disabled = true }))
	for i := range records {
		appendN(t, db, fmt.Sprintf("thing:%d", i), 1)
	}
	client := newClient(t, keyline.ClientConfig{})
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: "acme", Record: "x"}, Type: "other"}))(t)
	deadLetters(t, db, records+1)
	o := newOperator(t, db, keyline.RoleOperator)

	acme, x := "acme", "x"
	later := clock.Real().Now().Add(time.Hour)
	for name, c := range map[string]struct {
		f    keyline.DeadLetterFilter
		want int64
	}{
		"all":         {keyline.DeadLetterFilter{}, records + 1},
		"consumer":    {keyline.DeadLetterFilter{Consumer: "c"}, records + 1},
		"no consumer": {keyline.DeadLetterFilter{Consumer: "d"}, 0},
		"code":        {keyline.DeadLetterFilter{Code: "error"}, records + 1},
		"no code":     {keyline.DeadLetterFilter{Code: "panic"}, 0},
		"type":        {keyline.DeadLetterFilter{Type: "thing.done"}, records},
		"tenant":      {keyline.DeadLetterFilter{Tenant: &acme}, 1},
		"record":      {keyline.DeadLetterFilter{Record: &x}, 1},
		"since":       {keyline.DeadLetterFilter{Since: later}, 0},
		"until":       {keyline.DeadLetterFilter{Until: later}, records + 1},
	} {
		r := must(o.RetryDeadLetters(t.Context(), c.f, "", keyline.BulkOptions{DryRun: true}))(t)
		if r.Matched != c.want || !r.DryRun || r.Applied != 0 {
			t.Errorf("%s: %+v, want %d", name, r, c.want)
		}
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.commands"); n != 0 {
		t.Fatalf("dry runs gave %d commands", n)
	}

	// Not mended: all die again, and none is retried twice.
	items := 0
	r := must(o.RetryDeadLetters(t.Context(), keyline.DeadLetterFilter{Type: "thing.done"}, "try", keyline.BulkOptions{
		Progress: func(item keyline.BulkItem, of int64) {
			if items++; item.Code != "" || of != records || item.DeadLetter == 0 {
				t.Errorf("item %+v of %d", item, of)
			}
		}}))(t)
	if r.Applied != records || r.Failed != 0 || items != records {
		t.Errorf("%+v, %d items", r, items)
	}
	s.wait(t, records+1+records)
	deadLetters(t, db, records+1)
	settled(t, db)

	r = must(o.ResolveDeadLetters(t.Context(), keyline.DeadLetterFilter{Tenant: &acme}, "left", keyline.BulkOptions{}))(t)
	if r.Applied != 1 {
		t.Errorf("%+v", r)
	}
	_, err := o.ResolveDeadLetters(t.Context(), keyline.DeadLetterFilter{Tenant: &acme}, "left", keyline.BulkOptions{})
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
	deadLetters(t, db, records)

	// Pages of the list, the newest first, without gaps.
	seenIDs := map[int64]bool{}
	for below := int64(0); ; {
		page := must(o.DeadLetters(t.Context(), keyline.DeadLetterFilter{Statuses: []string{"open"}, Below: below, Limit: 70}))(t)
		if len(page) == 0 {
			break
		}
		for _, d := range page {
			if seenIDs[d.ID] || below != 0 && d.ID >= below {
				t.Fatalf("dead letter %d comes again", d.ID)
			}
			seenIDs[d.ID], below = true, d.ID
		}
	}
	if len(seenIDs) != records {
		t.Errorf("%d of %d in the pages", len(seenIDs), records)
	}
}

func TestBulkActCanBeCancelled(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	startWorker(t, db, keyline.Config{}, s.consumer("c"))
	for i := range 3 {
		appendN(t, db, fmt.Sprintf("thing:%d", i), 1)
	}
	deadLetters(t, db, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// One a second: the third is not begun before the cancellation is seen.
	o := newOperator(t, db, keyline.RoleOperator)
	ended := make(chan error, 1)
	go func() {
		_, err := o.RetryDeadLetters(ctx, keyline.DeadLetterFilter{}, "slowly", keyline.BulkOptions{PerSecond: 1})
		ended <- err
	}()
	testdb.Eventually(t, func() bool { return scalar[int](t, db.Pool(), "select count(*) from keyline.commands") >= 1 }, "it begins")
	cancel()
	wantError(t, <-ended, nil, keyline.CodeCancelled)
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.commands"); n == 3 {
		t.Error("it did not stop")
	}
}
