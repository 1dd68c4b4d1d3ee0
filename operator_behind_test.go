package keyline_test

import (
	"fmt"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// reasons are the reasons of all records behind, by key, read in pages of limit.
func reasons(t *testing.T, o keyline.Operator, consumer string, limit int) map[string]keyline.Reason {
	t.Helper()
	out := map[string]keyline.Reason{}
	for f := (keyline.BehindFilter{Limit: limit}); ; {
		page := must(o.Behind(t.Context(), consumer, f))(t)
		for _, r := range page.Records {
			if _, twice := out[r.Key]; twice {
				t.Errorf("%s comes twice", r.Key)
			}
			if r.Name != consumer || r.Position >= r.Head || r.NextSeq <= r.Position || r.Reason == keyline.ReasonDone {
				t.Errorf("%+v", r)
			}
			out[r.Key] = r.Reason
		}
		if page.Next == 0 {
			return out
		}
		f.After = page.Next
	}
}

func TestBehindListsEveryRecordOfAConsumerWithItsReason(t *testing.T) {
	t.Parallel()
	db, s, begun := testdb.New(t), newSeen(), make(chan struct{}, 100)
	startWorker(t, db, quickStop, recording(s, "fine"),
		failing("waits", func(c *keyline.Consumer) { c.Types, c.Breaker.Disabled = []string{"waits"}, true }),
		failing("parks", func(c *keyline.Consumer) {
			park(c)
			c.Types, c.Retry, c.Breaker.Disabled = []string{"parks"}, quick(), true
		}),
		blocking("blocks", begun))
	o, client := newOperator(t, db, keyline.RoleOperator), newClient(t, keyline.ClientConfig{})
	appendOf := func(record, kind string) {
		must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: record}, Type: kind}))(t)
	}
	if got := reasons(t, o, "fine", 2); len(got) != 0 {
		t.Errorf("behind before there is an event: %v", got)
	}
	const each = 5
	for i := range each {
		appendOf(fmt.Sprintf("w:%d", i), "waits")
		appendOf(fmt.Sprintf("p:%d", i), "parks")
	}
	s.wait(t, 2*each)
	<-begun
	for _, tc := range []struct {
		consumer, prefix string
		want             keyline.Reason
		n                int
	}{
		{"waits", "w", keyline.ReasonBackoff, each}, {"parks", "p", keyline.ReasonParked, each}, {"blocks", "w", keyline.ReasonClaimed, 2 * each},
	} {
		testdb.Eventually(t, func() bool {
			got := reasons(t, o, tc.consumer, 2)
			for i := range each {
				if got[fmt.Sprintf("%s:%d", tc.prefix, i)] != tc.want {
					return false
				}
			}
			return len(got) == tc.n
		}, "%s is behind on %d records: %s", tc.consumer, tc.n, tc.want)
	}
	testdb.Eventually(t, func() bool { return len(reasons(t, o, "fine", 2)) == 0 }, "what is done is not behind")
	page := must(o.Behind(t.Context(), "parks", keyline.BehindFilter{Limit: 1}))(t)
	if r := page.Records[0]; r.DeadLetter == nil || r.Since == nil || page.Consumer != "parks" || page.Next == 0 {
		t.Errorf("%+v", page)
	}

	// Paused, it keeps its places, and what comes meanwhile is behind too.
	if err := o.PauseConsumer(t.Context(), "fine", "maintenance"); err != nil {
		t.Fatal(err)
	}
	appendOf("later:1", "waits")
	testdb.Eventually(t, func() bool { return reasons(t, o, "fine", 2)["later:1"] == keyline.ReasonPaused }, "it waits on the new record")
	if got := reasons(t, o, "fine", 2); len(got) != 1 {
		t.Errorf("paused: %v", got)
	}
	// Disabled, it is behind on nothing.
	if err := o.DisableConsumer(t.Context(), "fine", "of no use"); err != nil {
		t.Fatal(err)
	}
	if got := reasons(t, o, "fine", 2); len(got) != 0 {
		t.Errorf("disabled: %v", got)
	}
	_, err := o.Behind(t.Context(), "nobody", keyline.BehindFilter{})
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
}

func TestBehindKnowsWhatNobodyRuns(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	registered(t, db, keyline.Config{}, recording(s, "gone"), recording(s, "stays"))
	startWorker(t, db, keyline.Config{}, recording(s, "stays"))
	appendN(t, db, "thing:1", 3)
	s.wait(t, 3)
	o := newOperator(t, db, keyline.RoleViewer)
	testdb.Eventually(t, func() bool { return reasons(t, o, "gone", 10)["thing:1"] == keyline.ReasonUnhosted }, "it is unhosted")
	testdb.Eventually(t, func() bool { return len(reasons(t, o, "stays", 10)) == 0 }, "its sibling is not behind")
}
