package store

import (
	"context"
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

func TestABareDrainSettlesAllThatIsDue(t *testing.T) {
	r := newRig(t)
	r.register(definition("a"), definition("b"))
	r.sweepAll()
	const records, events = 2500, 2
	if err := r.BareSeed(t.Context(), "r", records, events); err != nil {
		t.Fatal(err)
	}
	report, err := r.BareDrain(t.Context(), BareOptions{Batch: 100, Resident: 300})
	if err != nil {
		t.Fatal(err)
	}
	if report.Records != records || report.Events != records*events || report.PerSecond <= 0 {
		t.Errorf("%+v", report)
	}
	if report.Calls.Claims < records/100 || report.Calls.Claims > records || report.Calls.Loads > report.Calls.Claims || report.Calls.Flushes == 0 {
		t.Errorf("%+v", report.Calls)
	}
	if n := get[int64](r, "select count(*) from keyline.mailboxes"); n != 0 {
		t.Errorf("%d mailboxes left", n)
	}
	if n := get[int64](r, "select count(*) from keyline.records where cursor = head"); n != records {
		t.Errorf("%d settled", n)
	}
	if n := get[int64](r, "select sum(completed)::bigint from keyline.consumer_health"); n != 2*records*events {
		t.Errorf("%d deliveries counted", n)
	}
	if n := get[int64](r, "select count(*) from keyline.workers where name = 'bare drain' and status = 'left'"); n != 1 {
		t.Error("its worker has not left")
	}
	if report, err := r.BareDrain(t.Context(), BareOptions{}); err != nil || report.Records != 0 {
		t.Errorf("nothing is due: %+v, %v", report, err)
	}
}

// The seed is to be what append writes, or the yardstick measures something else.
func TestABareSeedWritesTheRowsOfAnAppend(t *testing.T) {
	r := newRig(t)
	id := r.append("appended", "bench.event", "bench.event")
	if err := r.BareSeed(t.Context(), "seeded", 1, 2); err != nil {
		t.Fatal(err)
	}
	seeded := r.record("seeded0")
	shape := func(record int64) string {
		return get[string](r, `select format('%s %s %s | %s | %s', r.tenant, r.head, r.cursor,
			(select string_agg(format('%s %s %s %s %s', e.seq, e.type, e.version, e.headers, e.idempotency_key), ',' order by e.seq) from keyline.events e where e.record_id = r.id),
			(select format('%s %s %s %s %s %s %s', m.due_at <= clock_timestamp(), m.claimed_by, m.token, m.cursor, m.crashes, m.unclean, m.wants) from keyline.mailboxes m where m.record_id = r.id))
			from keyline.records r where r.id = $1`, record)
	}
	if a, b := shape(id), shape(seeded); a != b {
		t.Errorf("append writes %s, the seed %s", a, b)
	}
}

func TestABareDrainEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	if err := r.BareSeed(t.Context(), "r", 10, 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBoom)
	if _, err := r.BareDrain(ctx, BareOptions{}); err == nil {
		t.Error("it ended without an error")
	}
	var _ core.Deliveries = r.Store
	var _ core.Leases = r.Store
}
