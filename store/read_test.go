package store

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

func TestLoadReadsHeaders(t *testing.T) {
	r := newRig(t)
	r.exec(`select keyline.append('r', 't', '{"a": [1, "ü"]}', headers => '{"correlation_id": "x", "k": "ü"}')`)
	r.append("r")
	c := r.claimOne(r.record("r"))
	l := r.load(c)
	ranged, err := r.LoadEvents(t.Context(), []core.EventRange{{Record: c.Record, From: 0, Limit: 1}})
	if err != nil || len(ranged) != 1 || len(l.Events) != 2 {
		t.Fatal(ranged, err)
	}
	for _, e := range []core.Event{l.Events[0], ranged[0]} {
		if len(e.Headers) != 2 || e.Headers["correlation_id"] != "x" || e.Headers["k"] != "ü" || string(e.Payload) != `{"a": [1, "ü"]}` {
			t.Errorf("%+v", e)
		}
	}
	if h := l.Events[1].Headers; len(h) != 0 {
		t.Errorf("headers of an event without: %v", h)
	}
}

func TestTheBacklogSaysWhatWaits(t *testing.T) {
	r := newRig(t)
	backlog := func() Backlog {
		t.Helper()
		b, err := r.Backlog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if b := backlog(); b.OldestAge != 0 || b.DeadLetters != 0 || b.Parked != 0 || len(b.Unhosted) != 0 {
		t.Errorf("of nothing: %+v", b)
	}
	c := r.register(definition("c"))
	id, later, taken := r.append("r"), r.append("later"), r.append("taken")
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() - interval '1 hour' where record_id = $1", taken)
	r.claimOne(taken)
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() - interval '1 minute' where record_id = $1", id)
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '1 minute' where record_id = $1", later)
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) values ($1, $3, 0, 'parked'), ($2, $3, 0, 'ready')", id, later, c)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at, status, due_at, resolved_at)
		select $1, s, $2, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), status, case status when 'retrying' then now() end, case status when 'resolved' then now() end
		from unnest(array['open', 'retrying', 'resolved']) with ordinality as u(status, s)`, id, c)
	if b := backlog(); b.OldestAge < time.Minute || b.OldestAge > 50*time.Minute || b.DeadLetters != 2 || b.Parked != 1 {
		t.Errorf("%+v", b)
	}
	for i, status := range []string{"backfilling", "paused", "disabled", "retired", "active", "active"} {
		id := r.register(definition(fmt.Sprint("nobody's", i), func(d *Definition) { d.ContractOnly = status == "active" && i == 5 }))
		r.exec("update keyline.consumers set status = $2 where id = $1", id, status)
	}
	r.exec("update keyline.workers set consumers = '{c}'")
	want := map[string]bool{"c": false, "nobody's0": true, "nobody's4": true}
	if b := backlog(); !maps.Equal(b.Unhosted, want) {
		t.Errorf("unhosted: %v, want %v", b.Unhosted, want)
	}
	r.exec("update keyline.workers set status = 'left', ended_at = clock_timestamp()")
	want["c"] = true
	if b := backlog(); !maps.Equal(b.Unhosted, want) {
		t.Errorf("unhosted where nobody lives: %v, want %v", b.Unhosted, want)
	}
}

// Databases that were cloned from one template have the same cluster id.
func TestClonesOfADatabaseAreToldApart(t *testing.T) {
	a, b := newRig(t), (*rig)(nil)
	t.Run("clone", func(t *testing.T) {
		b = newRig(t)
		idA, errA := a.Identity(t.Context())
		idB, errB := b.Identity(t.Context())
		if errA != nil || errB != nil || idA == idB || idA.Cluster != idB.Cluster {
			t.Errorf("%+v, %+v, %v, %v", idA, idB, errA, errB)
		}
	})
}
