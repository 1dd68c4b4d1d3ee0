package store

import (
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

// What a worker of version 1 writes, by the function that it calls, says that it is not known what ran before.
func TestARowOfAnOlderWorkerDoesNotSayWhatRan(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.sweepAll()
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	if res := r.flush1(core.Flush{Record: l.Record, Token: l.Token, Head: 2, Upserts: []core.Checkpoint{
		{Consumer: c, State: core.Started, Attempt: 1, RedeliverTo: 1}}}); res.Status != core.FlushKept {
		t.Fatalf("%+v", res)
	}
	startedBy := func() int64 {
		return get[int64](r, "select coalesce(started_by, 0) from keyline.checkpoints where record_id = $1", l.Record)
	}
	if row := r.row(l.Record, c); row.RedeliverTo != 1 || startedBy() != l.Token {
		t.Errorf("%+v, started by %d; the claim is %d", row, startedBy(), l.Token)
	}
	older := func(state string, attempt int) {
		t.Helper()
		r.exec(`select keyline.flush($1, (select registry_epoch from keyline.meta), 0::smallint, 1, array[$2::bigint], array[$3::bigint], array[2::bigint],
			array[0::bigint], array[0::smallint], array['infinity'::timestamptz], array[false], null,
			array[$2::bigint], array[$4::integer], array[0::bigint], array[$5::text], array[$6::integer], array[0], array[0],
			array[null::timestamptz], array[null::timestamptz], array[null::text], array[0::bigint], '{}', '{}', null, null)`,
			r.me, l.Record, l.Token, c, state, attempt)
	}
	older("started", 2)
	if row := r.row(l.Record, c); row.RedeliverTo != core.RedeliverUnknown || row.Attempt != 2 || startedBy() != l.Token {
		t.Errorf("%+v, started by %d; the claim is %d", row, startedBy(), l.Token)
	}
	older("ready", 0)
	if row := r.row(l.Record, c); row.RedeliverTo != core.RedeliverUnknown || startedBy() != 0 {
		t.Errorf("%+v, started by %d", row, startedBy())
	}
	if got := r.load(core.Claim{Record: l.Record, Token: l.Token}).Checkpoints[0].RedeliverTo; got != core.RedeliverUnknown {
		t.Errorf("loaded %d", got)
	}
}
