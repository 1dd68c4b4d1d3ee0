package crm

import (
	"context"
	"time"

	"github.com/keylinehq/keyline"
)

// dashboard counts events per organization, day and type.
type dashboard struct{ db Execer }

// countEvents counts those of a record's events that it has not counted yet. The
// primary key of dashboard_counted decides which: a batch that is handed over
// again, in whole or in part, finds its rows there and adds nothing. Both
// tables change in one statement, so one cannot have what the other has not.
// The order keeps two batches from locking each other's counters.
const countEvents = `
with fresh as (
  insert into crm.dashboard_counted (organization, activity_id, seq)
  select $1, $2, unnest($3::bigint[]) on conflict do nothing returning seq
)
insert into crm.dashboard as b (organization, day, event_type, events)
select $1, e.day, e.event_type, count(*)
from unnest($3::bigint[], $4::date[], $5::text[]) e (seq, day, event_type) join fresh using (seq)
group by e.day, e.event_type order by e.day, e.event_type
on conflict (organization, day, event_type) do update set events = b.events + excluded.events`

// count is a HandleBatch: a record's events that are due come together.
func (b dashboard) count(ctx context.Context, batch []*keyline.Delivery) error {
	id, err := activityID(batch[0])
	if err != nil {
		return err
	}
	seqs := make([]int64, len(batch))
	days := make([]time.Time, len(batch))
	types := make([]string, len(batch))
	for i, d := range batch {
		seqs[i], days[i], types[i] = d.Seq, d.OccurredAt.UTC().Truncate(24*time.Hour), d.Type
	}
	_, err = b.db.Exec(ctx, countEvents, batch[0].Tenant, id, seqs, days, types)
	return err
}
