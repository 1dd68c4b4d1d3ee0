package bench

import (
	"context"
	"errors"
	"time"
)

func pinned(ctx context.Context, p *play) error {
	l := workload{records: p.n(1_000_000), events: 1, consumers: 1}
	p.Step("fill the database")
	template, err := p.fill(ctx, l, nil)
	if err != nil {
		return err
	}
	const alone, beside = "alone", "beside an old transaction"
	watched := func(_ context.Context, c *Case) func(context.Context, *tally) { return course(c, 50*time.Millisecond) }
	turn := p.drains(template, l, watched)
	old := *p
	old.before = holdTransaction
	err = p.alternate(ctx, option{alone, fifths(l, turn)}, option{beside, fifths(l, old.drains(template, l, watched))})
	if err != nil {
		return err
	}
	p.report.atLeast("of the rate alone", 0.7, p.report.ratio("events", beside, alone))
	p.report.atLeast("the last fifth's rate, of the first's", 0.9, p.report.of(beside).ratio("last fifth", "first fifth"))
	return nil
}

// fifths adds the rates at the beginning and at the end.
func fifths(l workload, turn func(context.Context, *Case) error) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		if err := turn(ctx, c); err != nil {
			return err
		}
		c.add("first fifth", "events/s", part(c.Series, l.deliveries(), 0.005, 0.2))
		c.add("last fifth", "events/s", part(c.Series, l.deliveries(), 0.8, 0.995))
		return nil
	}
}

// holdTransaction opens a transaction with an id and a snapshot, which keeps
// vacuum from removing anything that dies from now on.
func holdTransaction(ctx context.Context, url string) (end func() error, err error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	end = func() error { return conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, "begin isolation level repeatable read"); err != nil {
		return nil, errors.Join(err, end())
	}
	if _, err := conn.Exec(ctx, "select pg_current_xact_id()"); err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}
