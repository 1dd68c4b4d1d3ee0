package bench

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// loadAverage is the machine's load over the last minute, nil where it does not
// say (only Linux does, in a file).
func loadAverage() *float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return nil
	}
	return &load
}

// median of a list that is not empty; between the two in the middle where there are two.
func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// rounded leaves out digits that mean nothing.
func rounded(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
