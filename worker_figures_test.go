package keyline_test

import (
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestAWorkerKeepsTheHealthOfEveryConsumer(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	appendN(t, db, "thing:1", 2) // before the worker's first count
	startWorker(t, db, keyline.Config{}, failing("waits", backoff, func(c *keyline.Consumer) { c.Start = keyline.Beginning() }), recording(s, "fine"))
	appendN(t, db, "thing:2", 1)
	s.wait(t, 3)
	o := newOperator(t, db, keyline.RoleViewer)
	var fine, waits keyline.ConsumerHealth
	testdb.Eventually(t, func() bool {
		list := must(o.ConsumerHealth(t.Context()))(t)
		if len(list) != 2 {
			t.Fatalf("%+v", list)
		}
		fine, waits = list[0], list[1]
		return waits.Pending == 3 && waits.Retrying == 2 && fine.Pending == 0
	}, "what waits is counted")
	if !waits.PendingExact || waits.Failed != 2 || waits.LastFailureAt == nil || waits.OldestAt == nil || waits.Term != 1 || waits.Workers != 1 ||
		fine.Completed != 3 || fine.LastSuccessAt == nil || fine.LastSeenAt == nil || fine.Name != "fine" {
		t.Errorf("%+v\n%+v", fine, waits)
	}
}
