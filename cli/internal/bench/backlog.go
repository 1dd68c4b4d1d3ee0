package bench

import (
	"context"
	"fmt"
	"time"
)

func backlog(ctx context.Context, p *play) error {
	l := workload{records: p.n(1_000_000), events: 10, consumers: 1}
	p.Step("fill the database")
	template, err := p.fill(ctx, l, nil)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d records of %d events", l.records, l.events)
	var claims []claimTime
	every := max(time.Duration(float64(500*time.Millisecond)*p.scale), 5*time.Millisecond)
	timed := *p
	if p.statements {
		timed.before = func(ctx context.Context, url string) (func() error, error) {
			claims = nil
			return watchClaims(ctx, url, 4*every, &claims)
		}
	}
	watched := func(_ context.Context, c *Case) func(context.Context, *tally) { return course(c, every) }
	turn := timed.drains(template, l, watched)
	err = p.alternate(ctx, option{name, func(ctx context.Context, c *Case) error {
		if err := turn(ctx, c); err != nil {
			return err
		}
		c.add("straightness", "R² of delivered over time", straight(c.Series, l.deliveries()))
		c.add(heapFirst, "bytes", highest(c.Series, 0.1, 0.5))
		c.add(heapSecond, "bytes", highest(c.Series, 0.5, 1))
		if first, last, ok := halves(claims); ok {
			c.add(claimFirst, "ms", first)
			c.add(claimSecond, "ms", last)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	c := p.report.of(name)
	p.report.atLeast("time is linear (R²)", 0.99, c.value("straightness"))
	p.report.atMost("the heap's peak in the second half, of the first's", 1.2, c.ratio(heapSecond, heapFirst))
	if c.runs(claimSecond) != nil {
		p.report.atMost("a claim's time in the second half, of the first's", 1.2, c.ratio(claimSecond, claimFirst))
	}
	return nil
}

const (
	heapFirst, heapSecond   = "heap, first half", "heap, second half"
	claimFirst, claimSecond = "claim, first half", "claim, second half"
)

// claimTime is what all claims together have taken so far.
type claimTime struct{ calls, ms float64 }

// watchClaims reads that again and again.
func watchClaims(ctx context.Context, url string, every time.Duration, into *[]claimTime) (end func() error, err error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			var t claimTime
			if err := conn.QueryRow(ctx, sqlClaims).Scan(&t.calls, &t.ms); err == nil && t.calls > 0 {
				*into = append(*into, t)
			}
		}
	}()
	return func() error {
		cancel()
		<-ended
		return conn.Close(context.WithoutCancel(ctx))
	}, nil
}

// halves are the mean times of a claim in both halves of a turn, in milliseconds.
func halves(claims []claimTime) (first, second float64, ok bool) {
	if len(claims) < 4 {
		return 0, 0, false
	}
	begin, middle, end := claims[0], claims[len(claims)/2], claims[len(claims)-1]
	if middle.calls == begin.calls || end.calls == middle.calls {
		return 0, 0, false
	}
	return (middle.ms - begin.ms) / (middle.calls - begin.calls), (end.ms - middle.ms) / (end.calls - middle.calls), true
}
