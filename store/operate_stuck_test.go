package store

import (
	"strings"
	"testing"
)

// Promise: what is stuck is listed by how long it waits, each for its reason, and what is on its way is not.
func TestStuckRecordsAreListedByHowLongTheyWait(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.sweepAll()
	for _, key := range []string{"ready", "claimed", "backoff", "parked", "fresh", "later"} {
		r.append(key, "t")
	}
	id := func(key string) string { return "(select id from keyline.records where record_key = '" + key + "')" }
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() - interval '1 hour' where record_id = " + id("ready"))
	r.exec("update keyline.mailboxes set claimed_by = $1, token = 1, claimed_at = clock_timestamp() - interval '2 hours' where record_id = "+id("claimed"), r.me)
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '1 hour' where record_id in (" + id("backoff") + "," + id("later") + ")")
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, next_attempt_at, first_failed_at, error_code) select "+id("backoff")+
		", $1, 0, 'backoff', 2, clock_timestamp() + interval '1 hour', clock_timestamp() - interval '3 hours', 'x'", c)
	r.exec("delete from keyline.mailboxes where record_id = " + id("parked"))
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, first_failed_at, error_code) select "+id("parked")+
		", $1, 0, 'parked', 4, clock_timestamp() - interval '30 minutes', 'y'", c)
	o := &Operate{r.Store}
	list, err := o.Stuck(t.Context(), 10, false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list {
		if s.Record != s.Reason {
			t.Errorf("%s is stuck as %s", s.Record, s.Reason)
		}
		got = append(got, s.Record)
	}
	if order := strings.Join(got, " "); order != "backoff claimed ready parked" {
		t.Errorf("stuck: %s", order)
	}
	if b := list[0]; b.Consumer != "c" || b.Attempt != 2 || b.ErrorCode != "x" || b.NextAttemptAt == nil || b.WorkerID != nil {
		t.Errorf("backoff: %+v", b)
	}
	if w := list[1]; w.WorkerID == nil || *w.WorkerID != r.me || w.Worker != "w" {
		t.Errorf("claimed: %+v", w)
	}
	if two, err := o.Stuck(t.Context(), 2, false); err != nil || len(two) != 2 || two[1].Record != "claimed" {
		t.Errorf("two of them: %+v, %v", two, err)
	}
}

// Promise: looking at what is stuck, and at the map of consumers, reads a few thousand rows, however many wait.
func TestStuckAndTheMapOfConsumersAreCheapHoweverManyRecordsWait(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"), definition("d"))
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '1 hour' where record_id % 2 = 0")
	r.exec("update keyline.mailboxes set claimed_by = $1, claimed_at = clock_timestamp() where record_id % 50 = 1", r.me)
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, next_attempt_at) select id, $1, 0, 'backoff', 1, now() + interval '1 hour' from keyline.records where id % 2 = 0", c)
	r.exec("update keyline.checkpoints set state = 'parked', next_attempt_at = null where record_id % 4 = 0")
	for _, statistics := range []string{"of before", "of now"} {
		t.Run("statistics "+statistics, func(t *testing.T) {
			r := r.sub(t)
			if statistics == "of now" {
				r.exec("vacuum analyze")
			}
			tx := r.begin()
			defer func() { r.rollbackTx(tx) }()
			r.in(tx, r.q("operate_thrifty"))
			r.frugal(tx, "operate_stuck", 4*healthMost, 10, stuckAfter.Seconds(), healthMost, true)
			r.rollbackTx(tx)
			tx = r.begin()
			r.frugal(tx, "overview_consumers", 2*10_001)
		})
	}
}
