package store

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/actors/delivery"
)

// Every set of states that an event's deliveries can be in, on a record that is claimed and on one that is not: a record
// for each, whose number says by its bits which of the consumers are in their state. The others are done.
func TestEventIsTheSumOfItsDeliveries(t *testing.T) {
	r := newRig(t)
	states := []delivery.DeliveryState{delivery.DeliveryPending, delivery.DeliveryProcessing, delivery.DeliveryRetry, delivery.DeliveryParked,
		delivery.DeliveryDead, delivery.DeliveryIgnored, delivery.DeliveryUnsupported}
	claimed := 1 << len(states)
	for _, s := range states {
		r.register(definition(string(s)))
	}
	r.exec("insert into keyline.records (tenant, record_key, head) select '', n, 1 from generate_series(0, $1::int) n", 2*claimed-1)
	r.exec(`insert into keyline.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
		select id, 1, gen_random_uuid(), 't', 1, 'null', '{}', now(), now() from keyline.records`)
	r.exec(`insert into keyline.mailboxes (record_id, due_at, claimed_by, claimed_at)
		select id, now(), case when record_key::int >= $1 then $2::bigint end, case when record_key::int >= $1 then now() end from keyline.records`, claimed, r.me)
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) select r.id, c.id, 1, 'ready' from keyline.records r, keyline.consumers c")
	for i, s := range states {
		in := func(sql string) { r.exec(sql, string(s), 1<<i) }
		const these = " from keyline.records r, keyline.events e, keyline.consumers c where e.record_id = r.id and c.name = $1 and r.record_key::int & $2 <> 0"
		checkpoint := func(set string) {
			in("update keyline.checkpoints k set " + set + these + " and k.record_id = r.id and k.consumer_id = c.id")
		}
		skip := func(code string) {
			in("insert into keyline.skips (record_id, seq, consumer_id, attempt, code, at) select r.id, 1, c.id, 0, '" + code + "', now()" + these)
		}
		switch s {
		case delivery.DeliveryPending:
			checkpoint("seq = 0")
		case delivery.DeliveryProcessing:
			checkpoint("seq = 0, state = 'started', attempt = 1")
		case delivery.DeliveryRetry:
			checkpoint("seq = 0, state = 'backoff', attempt = 1, next_attempt_at = now()")
		case delivery.DeliveryParked:
			checkpoint("seq = 0, state = 'parked', attempt = 1")
		case delivery.DeliveryDead:
			in(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
				select r.id, 1, c.id, e.id, 4, 'exhausted', 'x', now(), now()` + these)
		case delivery.DeliveryIgnored:
			skip("handler")
		case delivery.DeliveryUnsupported:
			skip("unsupported_version")
		}
	}
	rows, err := r.pool.Query(t.Context(), r.named(`select s.record_key::int, s.state, d.consumer, d.state
		from keyline.event_status s join keyline.deliveries d on d.record_id = s.record_id and d.seq = s.seq`))
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var event, consumer, state string
	seen := 0
	if _, err := pgx.ForEachRow(rows, []any{&number, &event, &consumer, &state}, func() error {
		seen++
		at := slices.Index(states, delivery.DeliveryState(consumer))
		want := delivery.DeliveryCompleted
		if number&(1<<at) != 0 {
			want = states[at]
		}
		if state != string(want) {
			t.Errorf("record %d: the delivery to %s is %s", number, consumer, state)
		}
		has := func(s delivery.DeliveryState) bool { return number&(1<<slices.Index(states, s)) != 0 }
		sum := "completed"
		switch {
		case has(delivery.DeliveryProcessing):
			sum = "processing"
		case has(delivery.DeliveryRetry):
			sum = "retry_scheduled"
		case has(delivery.DeliveryPending) && number >= claimed:
			sum = "claimed"
		case has(delivery.DeliveryPending), has(delivery.DeliveryParked):
			sum = "pending"
		case has(delivery.DeliveryDead):
			sum = "dead_letter"
		}
		if event != sum {
			t.Errorf("record %d: the event is %s, want %s", number, event, sum)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := 2 * claimed * len(states); seen != want {
		t.Errorf("%d deliveries are shown, want %d", seen, want)
	}
}
