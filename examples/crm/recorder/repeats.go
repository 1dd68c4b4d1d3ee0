package recorder

import (
	"context"
	_ "embed" // the statement
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed repeats.sql
var repeatsSQL string

// Outage is a time, by the database's clock, in which workers lost their
// sessions: then an answer may be lost, and with it a success.
type Outage struct{ From, To time.Time }

// Repeat is a delivery that succeeded twice: in a run of FirstWorker that began
// at FirstAt, and in one of Worker that began at At.
type Repeat struct {
	Consumer, Tenant, Record string
	Seq                      int64
	FirstWorker              string
	FirstAt                  time.Time
	Worker                   string
	At                       time.Time
}

func (r Repeat) String() string {
	return fmt.Sprintf("%s, %s/%s #%d, by %s at %s and by %s at %s", r.Consumer, r.Tenant, r.Record, r.Seq,
		r.FirstWorker, r.FirstAt.Format(time.StampMicro), r.Worker, r.At.Format(time.StampMicro))
}

// Unexplained returns the deliveries that succeeded again though between the
// two runs no worker of theirs was lost (killed, or silent beyond its lease) or cut off, and
// there was no outage. Workers are named in the log as they are in Keyline's table.
func Unexplained(ctx context.Context, pool *pgxpool.Pool, outages []Outage) ([]Repeat, error) {
	from, to := make([]time.Time, len(outages)), make([]time.Time, len(outages))
	for i, o := range outages {
		from[i], to[i] = o.From, o.To
	}
	rows, err := pool.Query(ctx, repeatsSQL, from, to)
	if err != nil {
		return nil, fmt.Errorf("look for repeated deliveries: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Repeat])
	if err != nil {
		return nil, fmt.Errorf("look for repeated deliveries: %w", err)
	}
	return list, nil
}
