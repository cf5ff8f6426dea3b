// Package plot draws line charts as SVG.
package render

import (
	"math"
	"slices"
)

// Chart is a set of lines over the same categories.
type Chart struct {
	Title string
	// Categories are the places of the horizontal axis, at equal distances,
	// whose name is XLabel.
	Categories []string
	XLabel     string
	// YLabel names the vertical axis, which is logarithmic.
	YLabel string
	Lines  []Line
}

// Line is a value for each category; a value outside of what can be drawn is
// left out.
type Line struct {
	Name   string
	Values []float64
}

// The values that can be drawn: a logarithmic axis has no zero.
const (
	smallest = 1e-9
	largest  = 1e18
)

func drawable(v float64) bool { return v >= smallest && v <= largest }

// axis is a logarithmic scale from low to high.
type axis struct{ low, high float64 }

// steps are where a decade is divided.
var steps = []float64{1, 2, 5, 10}

// verticalAxis reaches from a step below all values to one above them.
func (c *Chart) verticalAxis() axis {
	low, high := math.Inf(1), 0.0
	for _, line := range c.Lines {
		for _, v := range line.Values {
			if drawable(v) {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if high == 0 {
		return axis{1, 10}
	}
	a := axis{stepBelow(low), stepAbove(high)}
	if a.low == a.high {
		a.high *= 10
	}
	return a
}

func stepBelow(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range slices.Backward(steps) {
		if step*decade <= v {
			return step * decade
		}
	}
	return decade
}

func stepAbove(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range steps {
		if step*decade >= v {
			return step * decade
		}
	}
	return 10 * decade
}

// place is where v lies between low (0) and high (1).
func (a axis) place(v float64) float64 {
	return math.Log(v/a.low) / math.Log(a.high/a.low)
}

// ticks are the values to label.
func (a axis) ticks() []float64 {
	var ticks []float64
	for v := a.low; v <= a.high*(1+1e-9); v = stepAbove(v * (1 + 1e-6)) {
		ticks = append(ticks, v)
	}
	return ticks
}
