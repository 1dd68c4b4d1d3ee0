package bench

import (
	"bytes"
	"fmt"
	"html"
)

// The picture's measures, in its own units.
const (
	plotWidth, plotHeight = 720, 360
	plotLeft, plotBottom  = 90, 50
	plotTop, plotRight    = 40, 20
)

var plotColours = []string{"#1f6f8b", "#c2571a", "#3c8d40", "#7a4fa3"}

// Plot draws the courses of a report's cases, deliveries over time, as SVG; nil
// where it has none.
func Plot(r Report) []byte {
	var seconds, delivered float64
	for _, c := range r.Cases {
		for _, p := range c.Series {
			seconds, delivered = max(seconds, p.Seconds), max(delivered, float64(p.Delivered))
		}
	}
	if seconds == 0 || delivered == 0 {
		return nil
	}
	x := func(s float64) float64 { return plotLeft + s/seconds*(plotWidth-plotLeft-plotRight) }
	y := func(n float64) float64 { return plotHeight - plotBottom - n/delivered*(plotHeight-plotBottom-plotTop) }
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<text x="%d" y="18" font-size="14">keyline bench %s: deliveries over seconds</text>`+"\n", plotLeft, html.EscapeString(r.Scenario))
	for i := range 5 {
		share := float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, plotWidth-plotRight, y(share*delivered), y(share*delivered))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", plotLeft-8, y(share*delivered)+4, share*delivered)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.3g s</text>`+"\n", x(share*seconds), plotHeight-plotBottom+18, share*seconds)
	}
	drawn := 0
	for _, c := range r.Cases {
		if len(c.Series) == 0 {
			continue
		}
		colour := plotColours[drawn%len(plotColours)]
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, colour)
		for _, p := range c.Series {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(p.Seconds), y(float64(p.Delivered)))
		}
		b.WriteString("\"/>\n")
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", plotLeft+12, plotTop+14+18*drawn, colour, html.EscapeString(c.Name))
		drawn++
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
