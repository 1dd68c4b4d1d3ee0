package bench

import (
	"context"
	"runtime"
	"time"
)

// course notes how far a turn has come, again and again.
func course(c *Case, every time.Duration) func(context.Context, *tally) {
	c.Series = nil // the last run's is kept
	return func(ctx context.Context, t *tally) {
		tick := time.NewTicker(every)
		defer tick.Stop()
		began := time.Now()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			c.Series = append(c.Series, Point{Seconds: rounded(time.Since(began).Seconds(), 3), Delivered: t.delivered(), HeapBytes: m.HeapAlloc})
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// part returns the rate within a part of what is delivered, between two shares of it.
func part(series []Point, total int64, from, to float64) float64 {
	at := func(share float64) float64 { // when so much was delivered, between two points
		want := share * float64(total)
		for i := 1; i < len(series); i++ {
			a, b := series[i-1], series[i]
			if float64(b.Delivered) >= want && b.Delivered > a.Delivered {
				return a.Seconds + (b.Seconds-a.Seconds)*(want-float64(a.Delivered))/float64(b.Delivered-a.Delivered)
			}
		}
		return series[len(series)-1].Seconds
	}
	took := at(to) - at(from)
	if took <= 0 {
		return 0
	}
	return (to - from) * float64(total) / took
}

// straight is how well a course fits a straight line: R², 1 is a line. What comes
// before the first and after the last delivery is left out.
func straight(series []Point, total int64) float64 {
	var n, sx, sy, sxx, sxy, syy float64
	for i, p := range series {
		if p.Delivered == 0 || i > 0 && series[i-1].Delivered == total {
			continue
		}
		x, y := p.Seconds, float64(p.Delivered)
		n, sx, sy, sxx, sxy, syy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y, syy+y*y
	}
	cov, vx, vy := n*sxy-sx*sy, n*sxx-sx*sx, n*syy-sy*sy
	if vx <= 0 || vy <= 0 {
		return 0
	}
	return cov * cov / (vx * vy)
}

// highest is the largest heap in a part of the course, between two shares of its points.
func highest(series []Point, from, to float64) (most float64) {
	n := float64(len(series))
	for _, p := range series[int(from*n):int(to*n)] {
		most = max(most, float64(p.HeapBytes))
	}
	return most
}
