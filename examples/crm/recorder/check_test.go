package recorder_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/examples/crm/recorder"
)

// stream is an activity with six events, the fourth of them internal, and the
// four consumers registered, of which none has run.
func stream(t *testing.T) (*crmtest.App, crm.Activity) {
	t.Helper()
	a := crmtest.New(t)
	if err := recorder.Install(t.Context(), a.Pool); err != nil {
		t.Fatal(err)
	}
	stop := a.Start(keyline.Config{}, a.Consumers()...)
	a.Settled()
	stop()
	activity := a.Create()
	for i := range 4 {
		var err error
		if i == 2 {
			_, err = a.Service.AddNote(t.Context(), crmtest.By("zoe"), activity.ID, "x")
		} else {
			_, err = a.Service.Update(t.Context(), crmtest.By("zoe"), activity.ID, crm.Changes{Account: crmtest.Ptr(fmt.Sprint(i))})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return a, a.Complete(activity.ID)
}

// mark writes the log by hand: "b1 d1" are begin and done of seq 1 by timeline,
// "b1,2 d1,2" those of a batch. Each begin starts a run, which the next
// done with its seqs ends; "r" before a word names the run, as in "1b1 2b1 1d1".
func mark(t *testing.T, a *crmtest.App, activity crm.Activity, consumer, story string) {
	t.Helper()
	runs := map[string]uuid.UUID{}
	for word := range strings.FieldsSeq(story) {
		at := strings.IndexAny(word, "bd")
		name, seqs := word[:at], word[at+1:]
		kind := "done"
		if word[at] == 'b' {
			kind = "begin"
			runs[name+seqs] = uuid.New()
		}
		for seq := range strings.SplitSeq(seqs, ",") {
			a.Exec(`insert into crm.delivered_log (mark, run, consumer, tenant, record_key, seq, attempt, worker) values ($1, $2, $3, $4, $5, $6::bigint, 1, 'w')`,
				kind, runs[name+seqs], consumer, crmtest.Org, crm.Key("", activity.ID).Record, seq)
		}
	}
}

func dead(a *crmtest.App, activity crm.Activity, consumer string, seq int) {
	a.Exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select e.record_id, e.seq, c.id, e.id, 1, 'permanent', 'x', now(), now() from keyline.events e, keyline.consumers c, keyline.records r
		where r.id = e.record_id and r.record_key = 'activity:' || $1::uuid and e.seq = $2 and c.name = $3`, activity.ID, seq, consumer)
}

// Promise: the check finds each kind of wrong delivery, and takes for right what is.
func TestCheckTellsRightFromWrongDeliveries(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		consumer, story string
		dead            int
		want            recorder.Consumer
	}{
		"all in order": {"timeline", "b1 d1 b2 d2 b3 d3 b5 d5 b6 d6", 0, recorder.Consumer{Expected: 5, Delivered: 5}},
		"nothing":      {"timeline", "", 0, recorder.Consumer{Expected: 5, Lost: 5}},
		"the last is missing": {"timeline", "b1 d1 b2 d2 b3 d3 b5 d5", 0,
			recorder.Consumer{Expected: 5, Delivered: 4, Lost: 1}},
		"the last has begun": {"timeline", "b1 d1 b2 d2 b3 d3 b5 d5 b6", 0,
			recorder.Consumer{Expected: 5, Delivered: 4, Lost: 1}},
		"retried": {"timeline", "1b1 2b1 2d1 b2 d2 b3 d3 1b5 2b5 2d5 b6 d6", 0, recorder.Consumer{Expected: 5, Delivered: 5}},
		"twice after a crash": {"timeline", "1b1 1d1 2b1 2d1 b2 d2 b3 d3 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 5, Redelivered: 1}},
		"twice at the same time": {"timeline", "1b1 2b1 1d1 2d1 b2 d2 b3 d3 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 5, Redelivered: 1}},
		"an old one again, late": {"timeline", "1b1 1d1 b2 d2 2b1 2d1 b3 d3 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 5, Redelivered: 1}},
		"a gap": {"timeline", "b1 d1 b3 d3 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 4, Lost: 1, OrderViolations: 3}},
		"two swapped": {"timeline", "b1 d1 b3 d3 b2 d2 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 5, OrderViolations: 1}},
		"the next has begun too early": {"timeline", "b1 b2 d1 d2 b3 d3 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 5, OrderViolations: 1}},
		"an old run goes on after a younger one": {"timeline", "1b1 b2 d2 2b1 2d1 b3 d3 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 5, OrderViolations: 1}},
		"a dead letter is passed": {"timeline", "b1 d1 b2 b3 d3 b5 d5 b6 d6", 2,
			recorder.Consumer{Expected: 5, Delivered: 4, Dead: 1}},
		"a dead letter is retried later": {"timeline", "b1 d1 1b2 b3 d3 b5 d5 b6 d6 2b2 2d2", 2,
			recorder.Consumer{Expected: 5, Delivered: 5}},
		"a dead letter ran too early": {"timeline", "b2 b1 d1 b3 d3 b5 d5 b6 d6", 2,
			recorder.Consumer{Expected: 5, Delivered: 4, Dead: 1, OrderViolations: 1}},
		"the internal one": {"timeline", "b1 d1 b2 d2 b3 d3 b4 d4 b5 d5 b6 d6", 0,
			recorder.Consumer{Expected: 5, Delivered: 5, Unexpected: 1}},
		"a batch": {"dashboard", "b1,2,3 d1,2,3 b4,5,6 d4,5,6", 0, recorder.Consumer{Expected: 6, Delivered: 6}},
		"a batch that failed": {"dashboard", "b1,2,3,4,5,6 b1 d1 b2 d2 b3,4,5,6 d3,4,5,6", 0,
			recorder.Consumer{Expected: 6, Delivered: 6}},
		"a batch again after a crash": {"dashboard", "1b1,2,3 1d1,2,3 2b1,2,3 2d1,2,3 b4,5,6 d4,5,6", 0,
			recorder.Consumer{Expected: 6, Delivered: 6, Redelivered: 3}},
		"a batch in the wrong order": {"dashboard", "b2,1,3 d2,1,3 b4,5,6 d4,5,6", 0,
			recorder.Consumer{Expected: 6, Delivered: 6, OrderViolations: 1}},
		"a batch too early": {"dashboard", "b1,2,3 b4,5,6 d1,2,3 d4,5,6", 0,
			recorder.Consumer{Expected: 6, Delivered: 6, OrderViolations: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, activity := stream(t)
			mark(t, a, activity, tc.consumer, tc.story)
			if tc.dead > 0 {
				dead(a, activity, tc.consumer, tc.dead)
			}
			r, err := recorder.Check(t.Context(), a.Pool)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Consumers[tc.consumer]; got != tc.want {
				t.Errorf("\ngot  %+v\nwant %+v", got, tc.want)
			}
			if want := tc.want.Lost == 0 && tc.want.OrderViolations == 0 && tc.want.Unexpected == 0; r.Lost == tc.want.Lost && r.OK() != want {
				t.Errorf("OK is %v", r.OK())
			}
			if r.Appended != 6 || len(r.Consumers) != 4 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Promise: a consumer that starts with what happens from now on is not owed
// what was before.
func TestAConsumerIsOwedNothingFromBeforeItsStart(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	if err := recorder.Install(t.Context(), a.Pool); err != nil {
		t.Fatal(err)
	}
	old := a.Create()
	a.Start(keyline.Config{}, recorder.Record(a.Consumers(), a.Pool, "w")...)
	a.Settled()
	a.Complete(old.ID)
	a.Settled()
	r, err := recorder.Check(t.Context(), a.Pool)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Consumers["notification"]; n.Expected != 1 || n.Lost != 0 || n.Delivered < 1 {
		t.Errorf("notification: %+v", n)
	}
	if n := r.Consumers["timeline"]; n.Expected != 2 || n.Delivered != 2 || !r.OK() {
		t.Errorf("%+v", r)
	}
}

// Promise: a check takes time by how much was delivered, not by its square: after ten minutes of traffic it
// must not take minutes. Statistics are of no help: what the planner guesses of the parts is a few rows.
func TestTheCheckOfALongLogIsNotQuadratic(t *testing.T) {
	t.Parallel()
	a, _ := stream(t)
	const events = 4000
	a.Exec(`insert into keyline.records (tenant, record_key, head) select $1, 'long', $2::bigint`, crmtest.Org, events)
	a.Exec(`insert into keyline.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
		select r.id, n, gen_random_uuid(), e.type, e.version, '{}', '{}', clock_timestamp(), clock_timestamp()
		from keyline.records r, generate_series(1, $1::bigint) n,
		  (select type, version from keyline.events where type = 'activity.updated' limit 1) e where r.record_key = 'long'`, events)
	a.Exec(`insert into crm.delivered_log (mark, run, consumer, tenant, record_key, seq, attempt, worker)
		select m.mark, l.run, 'timeline', $1, 'long', l.n, 1, 'w' from
		  (select n, gen_random_uuid() as run from generate_series(1, $2::bigint) n) l, (values (1, 'begin'), (2, 'done')) m (i, mark) order by l.n, m.i`,
		crmtest.Org, events)
	compared, err := recorder.Compared(t.Context(), a.Pool)
	if err != nil {
		t.Fatal(err)
	}
	if compared > 20*events {
		t.Errorf("%.0f rows were compared in vain for %d deliveries", compared, events)
	}
	r, err := recorder.Check(t.Context(), a.Pool)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Consumers["timeline"]; c.Delivered != events || c.OrderViolations != 0 || c.Unexpected != 0 {
		t.Errorf("%+v", c)
	}
}
