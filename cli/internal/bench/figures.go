package bench

import (
	"math"
	"slices"
)

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
