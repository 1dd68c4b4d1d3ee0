package keyline

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/store"
)

// What cannot be staged at will, and which reason wins where there are several.
func TestWhyIsAFunctionOfTheRows(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later, earlier, worker := now.Add(time.Hour), now.Add(-time.Hour), int64(7)
	behind := store.WhyConsumer{ID: 1, Name: "c", Status: "active", State: "ready", NextSeq: 1, NextAt: &earlier, Hosts: []int64{7, 8}}
	with := func(change func(*store.WhyConsumer)) store.WhyConsumer {
		c := behind
		change(&c)
		return c
	}
	for _, tc := range []struct {
		name     string
		consumer store.WhyConsumer
		rows     store.WhyRows
		want     Reason
	}{
		{"due", behind, store.WhyRows{Mailbox: true}, ReasonReady},
		{"held", behind, store.WhyRows{Worker: &worker, WorkerStatus: "live", ClaimedAt: &earlier}, ReasonClaimed},
		{"backoff is over", with(func(c *store.WhyConsumer) { c.State, c.NextAttemptAt = "backoff", &earlier }), store.WhyRows{}, ReasonReady},
		{"a claimed record's consumer in backoff", with(func(c *store.WhyConsumer) { c.State, c.NextAttemptAt = "backoff", &later }),
			store.WhyRows{Worker: &worker, WorkerStatus: "live", ClaimedAt: &earlier}, ReasonBackoff},
		{"nobody runs what is in backoff", with(func(c *store.WhyConsumer) { c.State, c.NextAttemptAt, c.Hosts = "backoff", &later, nil }), store.WhyRows{}, ReasonUnhosted},
		{"parked, hosted or not", with(func(c *store.WhyConsumer) { c.State, c.Hosts = "parked", nil }), store.WhyRows{}, ReasonParked},
		{"paused while parked", with(func(c *store.WhyConsumer) { c.State, c.Status = "parked", "paused" }), store.WhyRows{}, ReasonPaused},
		{"a dead letter delivered again later", with(func(c *store.WhyConsumer) { c.NextSeq, c.Retrying, c.RetryingAt = 0, 3, &later }), store.WhyRows{}, ReasonBackoff},
		{"a dead letter delivered again now", with(func(c *store.WhyConsumer) { c.NextSeq, c.Retrying, c.RetryingAt = 0, 3, &earlier }), store.WhyRows{}, ReasonReady},
		{"one of two breakers", with(func(c *store.WhyConsumer) { c.BreakerAt = []int64{8} }), store.WhyRows{Mailbox: true, DueAt: &earlier}, ReasonReady},
		{"the holder's breaker", with(func(c *store.WhyConsumer) { c.BreakerAt = []int64{7} }), store.WhyRows{Worker: &worker, WorkerStatus: "live", ClaimedAt: &earlier}, ReasonBreakerOpen},
		{"every breaker", with(func(c *store.WhyConsumer) { c.BreakerAt = []int64{7, 8} }), store.WhyRows{Mailbox: true, DueAt: &earlier}, ReasonBreakerOpen},
		{"handed back to the probe", with(func(c *store.WhyConsumer) { c.BreakerAt = []int64{8} }), store.WhyRows{Mailbox: true, DueAt: &later}, ReasonBreakerOpen},
		{"an appender behind what is done", with(func(c *store.WhyConsumer) { c.NextSeq = 0 }), store.WhyRows{AppenderHolds: true}, ReasonAppenderInFlight},
		{"an appender behind what is not", behind, store.WhyRows{AppenderHolds: true, Mailbox: true}, ReasonReady},
		{"lockstep with one in front", with(func(c *store.WhyConsumer) { c.NextSeq = 2 }), store.WhyRows{Ordering: Lockstep,
			Consumers: []store.WhyConsumer{{ID: 2, Name: "o", Status: "paused", NextSeq: 1}}}, ReasonLockstep},
		{"lockstep with one that is backfilling in front", with(func(c *store.WhyConsumer) { c.NextSeq = 2 }), store.WhyRows{Ordering: Lockstep,
			Consumers: []store.WhyConsumer{{ID: 2, Name: "o", Status: "backfilling", NextSeq: 1}}}, ReasonReady},
		{"lockstep at the same event", behind, store.WhyRows{Ordering: Lockstep,
			Consumers: []store.WhyConsumer{{ID: 2, Name: "o", Status: "active", NextSeq: 1, Hosts: []int64{7}}}}, ReasonReady},
		{"a paused sibling of all_for_one", behind, store.WhyRows{
			Consumers: []store.WhyConsumer{{ID: 2, Name: "o", Status: "paused", State: "parked", Scope: AllForOne, NextSeq: 1}}}, ReasonReady},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := tc.rows
			v.Key, v.Head, v.Now = Key{Tenant: "a b", Record: "it's"}, 2, now
			v.Consumers = append([]store.WhyConsumer{tc.consumer}, v.Consumers...)
			w := explain(v)
			if w.Consumers[0].Reason != tc.want {
				t.Errorf("%s, want %s", w.Consumers[0].Reason, tc.want)
			}
			if w.Sentence == "" || strings.Contains(w.Sentence, "%!") {
				t.Errorf("sentence: %q", w.Sentence)
			}
		})
	}
}

func TestWhysSentenceIsAboutWhatIsNotDone(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	earlier, later, worker := now.Add(-time.Hour), now.Add(time.Hour), int64(7)
	done := store.WhyConsumer{ID: 1, Name: "a", Status: "active", State: "ready", Seq: 2, Hosts: []int64{7}}
	redelivering, behind := done, done
	redelivering.Retrying, redelivering.RetryingAt = 3, &earlier
	behind.Seq, behind.NextSeq, behind.NextAt = 0, 1, &earlier
	held := store.WhyRows{Mailbox: true, Worker: &worker, WorkerName: "crm", WorkerStatus: "live", ClaimedAt: &earlier}
	silent, lost := held, held
	silent.WorkerSilent = true
	lost.WorkerStatus = "lost"
	failed, parked, nobodys, given, passed := behind, behind, behind, done, done
	event := uuid.MustParse("0197c2a0-5b1e-7c9a-8f3e-2d1c0b9a8f7e")
	failed.State, failed.Attempt, failed.ErrorCode, failed.NextAttemptAt, failed.NextID = "backoff", 2, "smtp", &later, &event
	parked.State, parked.Attempt, parked.ErrorCode, parked.DeadLetter, parked.NextID = "parked", 4, "smtp", 9, &event
	nobodys.Hosts = nil
	given.OpenDead = 1
	with := func(v store.WhyRows, change func(*store.WhyRows)) store.WhyRows { change(&v); return v }
	due, passing := store.WhyRows{Mailbox: true, DueAt: &earlier}, store.WhyRows{}
	// Worker 7 holds or runs it; 8 is somebody else.
	crm, other := store.WhyWorker{ID: 7, Name: "crm"}, store.WhyWorker{ID: 8, Name: "other"}
	goneCRM, goneOther := crm, other
	goneCRM.Silent, goneOther.Silent = true, true
	among := func(v store.WhyRows, list ...store.WhyWorker) store.WhyRows { v.Live = list; return v }
	for _, tc := range []struct {
		name      string
		rows      store.WhyRows
		consumers []store.WhyConsumer
		has, not  string
	}{
		{"an appender is all that there is", store.WhyRows{AppenderHolds: true}, []store.WhyConsumer{done, done}, "a transaction that appends", "more"},
		{"the others are done", held, []store.WhyConsumer{behind, done}, "event 1", "more"},
		{"one more is behind", held, []store.WhyConsumer{behind, behind}, "One more consumer is not done here.", "1 more"},
		{"two more are behind", held, []store.WhyConsumer{behind, behind, behind}, "2 more consumers are not done here.", ""},
		{"a dead letter is delivered again", held, []store.WhyConsumer{redelivering}, "dead letter 3", "event 2"},
		{"its holder is gone, and nobody has found it lost", silent, []store.WhyConsumer{behind}, "crm#7 has claimed r and has been silent", "look at its handler"},
		{"and others will", among(silent, goneCRM, other), []store.WhyConsumer{behind}, "Another worker frees what it holds.", "start one"},
		{"and nobody else lives", among(silent, goneCRM, goneOther), []store.WhyConsumer{behind}, "No other worker lives: start one", "Another"},
		{"its holder was lost", among(lost, other), []store.WhyConsumer{behind}, "Worker crm#7 has claimed r and does not live any more. Another one frees it", "start one"},
		{"its holder was lost and nobody else lives", lost, []store.WhyConsumer{behind}, "does not live any more. No other worker lives: start one", "Another one"},
		{"due, and its host is gone unnoticed", among(due, goneCRM, other), []store.WhyConsumer{behind}, "crm#7, which would run it, has been silent", "as soon as one is free"},
		{"due, and one of two hosts is gone", among(due, goneCRM, crm), []store.WhyConsumer{behind}, "as soon as one is free", "silent"},
		{"nobody runs it", among(due, other), []store.WhyConsumer{nobodys}, "keyline consumers retire a", "none lives"},
		{"nobody lives", among(due, goneOther), []store.WhyConsumer{nobodys}, "none lives at all", "retire"},
		{"suspect", with(held, func(v *store.WhyRows) { v.Crashes = 2 }), []store.WhyConsumer{behind}, "2 times a worker was lost that held it", ""},
		{"in backoff", due, []store.WhyConsumer{failed}, "runs it now. `keyline trace " + event.String() + "` shows the errors.", ""},
		{"in backoff, and nobody lives", among(due, goneCRM), []store.WhyConsumer{failed}, "shows the errors. No worker lives: start one", ""},
		{"in backoff, and somebody lives", among(due, goneCRM, other), []store.WhyConsumer{failed}, "shows the errors.", "No worker"},
		{"parked", due, []store.WhyConsumer{parked}, "(smtp). `keyline trace " + event.String() + "` shows the errors. Mend", ""},
		{"an act is waiting", with(due, func(v *store.WhyRows) { v.Commands = 2 }), []store.WhyConsumer{parked}, "2 commands of operators wait", ""},
		{"an act is all that waits", with(due, func(v *store.WhyRows) { v.Commands = 2 }), []store.WhyConsumer{done}, "done with r, up to event 2. 2 commands", ""},
		{"a consumer was disabled", with(passing, func(v *store.WhyRows) { v.Disabled = []string{"b"} }), []store.WhyConsumer{passed}, "Disabled, so that events pass: b.", ""},
		{"many were", with(passing, func(v *store.WhyRows) { v.Disabled = []string{"b", "c", "d", "x"} }), []store.WhyConsumer{given}, "shows them. Disabled, so that events pass them: b, c, d and 1 more.", "x"},
		{"all were", with(passing, func(v *store.WhyRows) { v.Disabled = []string{"b"} }), nil, "No consumer waits for r. Disabled", "registered"},
		{"there is none", passing, nil, "No consumer is registered that waits for r.", "Disabled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := tc.rows
			v.Key, v.Head, v.Now, v.Consumers = Key{Record: "r"}, 2, now, tc.consumers
			got := explain(v).Sentence
			if !strings.Contains(got, tc.has) || tc.not != "" && strings.Contains(got, tc.not) {
				t.Errorf("%q: wants %q and not %q", got, tc.has, tc.not)
			}
		})
	}
}

func TestWhysCommandsCanBePasted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"activity:42": "activity:42", "it's": `'it'\''s'`, "a b": "'a b'", "$(rm)": "'$(rm)'", "": "''", "-x": "'-x'"} {
		if got := shell(in); got != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
}
