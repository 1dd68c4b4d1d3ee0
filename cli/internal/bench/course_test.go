package bench

import (
	"math"
	"testing"
)

// line is a course that delivers rate per second, by tenths of a second.
func line(n int, rate func(i int) int64) (series []Point) {
	var delivered int64
	for i := range n {
		series = append(series, Point{Seconds: float64(i) / 10, Delivered: delivered})
		delivered += rate(i) / 10
	}
	return series
}

func TestPartsOfACourse(t *testing.T) {
	slows := line(101, func(i int) int64 {
		if i < 50 {
			return 3000
		}
		return 1000
	})
	total := slows[100].Delivered // 15,000 in the first half of the time, 5,000 in the second
	if first, last := part(slows, total, 0.01, 0.2), part(slows, total, 0.8, 0.99); math.Abs(first-3000) > 1 || math.Abs(last-1000) > 1 {
		t.Errorf("first fifth %v, last %v", first, last)
	}
	if r := straight(slows, total); r > 0.95 {
		t.Errorf("a course that bends is straight: %v", r)
	}
	even := line(101, func(int) int64 { return 1000 })
	if r := straight(even, even[100].Delivered); r < 0.999 {
		t.Errorf("a line is not straight: %v", r)
	}
	even[20].HeapBytes, even[80].HeapBytes = 7, 5
	if a, b := highest(even, 0, 0.5), highest(even, 0.5, 1); a != 7 || b != 5 {
		t.Errorf("highest heaps %v and %v", a, b)
	}
}

func TestRatiosAreOfTheSameRun(t *testing.T) {
	var r Report
	for _, v := range []float64{10, 100, 1000} {
		r.of("a").add("events", "", v)
		r.of("b").add("events", "", 2*v)
	}
	if got := r.ratio("events", "b", "a"); got != 2 {
		t.Errorf("ratio %v", got)
	}
	// A last fifth beside the first of another run, which a busier machine had, is 0.883.
	c := r.of("c")
	for _, v := range [][2]float64{{31427, 25010}, {28668, 27756}, {31460, 35341}} {
		c.add("first fifth", "", v[0])
		c.add("last fifth", "", v[1])
	}
	if got := c.ratio("last fifth", "first fifth"); math.Abs(got-0.968) > 0.001 {
		t.Errorf("ratio %v", got)
	}
	r.atLeast("x", 2, 2)
	r.atMost("y", 2, 2.1)
	if !r.Goals[0].Reached || r.Goals[1].Reached {
		t.Errorf("goals %+v", r.Goals)
	}
}

func TestClaimTimesByHalves(t *testing.T) {
	list := []claimTime{{10, 10}, {20, 20}, {30, 30}, {40, 60}, {50, 90}}
	if first, second, ok := halves(list); !ok || first != 1 || second != 3 {
		t.Errorf("%v, %v, %v", first, second, ok)
	}
	if _, _, ok := halves(list[:3]); ok {
		t.Error("too few to say")
	}
}
