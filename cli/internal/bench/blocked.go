package bench

import (
	"context"
	_ "embed" // the statements
	"fmt"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/parked.sql
	sqlParked string
	//go:embed sql/backoff.sql
	sqlBackoff string
)

func blocked(ctx context.Context, p *play) error {
	l := workload{records: p.n(200_000), events: 1, consumers: 1}
	const alone = "healthy records alone"
	var options []option
	for _, c := range []struct {
		name, sql       string
		records, events int
	}{
		{name: alone},
		{"parked", sqlParked, 1, p.n(100_000)},
		{"parked", sqlParked, p.n(1000), 10},
		{"in backoff", sqlBackoff, p.n(300_000), 1},
	} {
		if c.sql != "" {
			c.name = fmt.Sprintf("beside %d × %d events %s", c.records, c.events, c.name)
		}
		p.Step("fill the database: " + c.name)
		template, err := p.fill(ctx, l, func(ctx context.Context, conn *pgx.Conn) error {
			if c.sql == "" {
				return nil
			}
			if _, err := conn.Exec(ctx, c.sql, c.records, c.events); err != nil {
				return fmt.Errorf("stage: %w", err)
			}
			return sound(ctx, conn.Config().ConnString())
		})
		if err != nil {
			return err
		}
		options = append(options, option{c.name, p.drains(template, l, nil)})
	}
	if err := p.alternate(ctx, options...); err != nil {
		return err
	}
	for _, o := range options[1:] {
		p.report.atLeast(o.name+", of the rate alone", 0.9, p.report.ratio("events", o.name, alone))
	}
	return nil
}
