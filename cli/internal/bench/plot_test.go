package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestPlotIsWellFormed(t *testing.T) {
	r := Report{Scenario: "pinned"}
	if Plot(r) != nil {
		t.Error("a plot of nothing")
	}
	r.of("a < b").Series = []Point{{0, 0, 1}, {1, 50, 1}, {2, 100, 1}}
	r.of("no course")
	r.of("c").Series = []Point{{0, 0, 1}, {4, 100, 1}}
	svg := string(Plot(r))
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
	}
	if strings.Count(svg, "<polyline") != 2 || !strings.Contains(svg, "a &lt; b") || strings.Contains(svg, "no course") {
		t.Error(svg)
	}
	if !strings.Contains(svg, "90.0,310.0 ") || !strings.Contains(svg, "395.0,40.0 ") { // the origin, and the top in the middle
		t.Error(svg)
	}
}
