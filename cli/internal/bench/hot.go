package bench

import (
	"context"
	"fmt"
)

func hot(ctx context.Context, p *play) error {
	var options []option
	for _, shape := range []workload{
		{records: p.n(200), events: 1000, consumers: 1},
		{records: 1, events: p.n(10_000), consumers: 1},
	} {
		p.Step("fill the database")
		template, err := p.fill(ctx, shape, nil)
		if err != nil {
			return err
		}
		for _, window := range []int{1, 64} {
			l := shape
			l.window = window
			options = append(options, option{fmt.Sprintf("%d × %d events, window %d", l.records, l.events, window), p.drains(template, l, nil)})
		}
	}
	return p.alternate(ctx, options...)
}
