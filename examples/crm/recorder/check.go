package recorder

import (
	"context"
	_ "embed" // the statements
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed check.sql
var checkSQL string

//go:embed latency.sql
var latencySQL string

// Consumer is what became of one consumer's deliveries.
type Consumer struct {
	// Expected are the events that it was owed, by its definition.
	Expected int64 `json:"expected"`
	// Delivered are the events that its handler has succeeded with, and
	// Redelivered how many times more than once it has.
	Delivered   int64 `json:"delivered"`
	Redelivered int64 `json:"redelivered"`
	// Dead are the dead letters among those that never succeeded.
	Dead int64 `json:"dead"`
	// Lost are the expected events that neither succeeded nor ended otherwise.
	// Before all work is done these are the ones that wait.
	Lost int64 `json:"lost"`
	// OrderViolations are the events that were handed over before something
	// older of their record had ended.
	OrderViolations int64 `json:"order_violations"`
	// Unexpected are events that it should never have seen.
	Unexpected int64 `json:"unexpected"`
}

// Report is the sum over all consumers, and each of them.
type Report struct {
	// Appended are the events in all streams.
	Appended int64 `json:"appended"`
	Consumer
	// P50 and P99 are milliseconds from an append to the first start of a handler.
	P50       float64             `json:"p50_ms"`
	P99       float64             `json:"p99_ms"`
	Consumers map[string]Consumer `json:"consumers"`
}

// OK says whether everything was delivered, in order, to those whom it concerned.
func (r Report) OK() bool { return r.Lost == 0 && r.OrderViolations == 0 && r.Unexpected == 0 }

// byHash is for a statement in whose parts the planner expects a few rows each,
// where they are as many as there are deliveries.
const byHash = "set local enable_nestloop = off"

// Check compares the log with the streams. It is about the consumers that are
// registered, and for when all work is done. Keyline's schema must have its default name.
func Check(ctx context.Context, pool *pgxpool.Pool) (Report, error) {
	r := Report{Consumers: map[string]Consumer{}}
	// One snapshot for all of it.
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byHash); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "select count(*) from keyline.events").Scan(&r.Appended); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, latencySQL).Scan(&r.P50, &r.P99); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, checkSQL)
		if err != nil {
			return err
		}
		var name string
		var c Consumer
		_, err = pgx.ForEachRow(rows, []any{&name, &c.Expected, &c.Delivered, &c.Redelivered, &c.Dead, &c.Lost, &c.OrderViolations, &c.Unexpected},
			func() error {
				r.Consumers[name] = c
				r.add(c)
				return nil
			})
		return err
	})
	if err != nil {
		return r, fmt.Errorf("check deliveries: %w", err)
	}
	return r, nil
}

func (c *Consumer) add(o Consumer) {
	c.Expected += o.Expected
	c.Delivered += o.Delivered
	c.Redelivered += o.Redelivered
	c.Dead += o.Dead
	c.Lost += o.Lost
	c.OrderViolations += o.OrderViolations
	c.Unexpected += o.Unexpected
}
