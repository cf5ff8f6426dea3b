package benchsuite

import "fmt"

// Goal is a figure and what it is to be.
type Goal struct {
	Name string `json:"name"`
	// Basis is what the figure was made of.
	Basis  string  `json:"basis"`
	Figure float64 `json:"figure"`
	Unit   string  `json:"unit"` // "" for a ratio
	// Bound is what the figure has to reach, or with AtMost not to exceed.
	Bound  float64 `json:"bound"`
	AtMost bool    `json:"at_most"`
	Met    bool    `json:"met"`
}

// NewGoal holds a figure against a bound.
func NewGoal(name, basis string, figure float64, unit string, bound float64, atMost bool) Goal {
	met := figure >= bound
	if atMost {
		met = figure <= bound
	}
	return Goal{Name: name, Basis: basis, Figure: figure, Unit: unit, Bound: bound, AtMost: atMost, Met: met}
}

// String tells figure and bound.
func (g *Goal) String() string {
	return fmt.Sprintf("%s: %s, to be %s", g.Name, g.Text(), g.Demand())
}

// Text is the figure with its unit.
func (g *Goal) Text() string { return g.value(g.Figure) }

// Demand tells the bound.
func (g *Goal) Demand() string {
	if g.AtMost {
		return "at most " + g.value(g.Bound)
	}
	return "at least " + g.value(g.Bound)
}

func (g *Goal) value(v float64) string {
	if g.Unit == "" {
		return fmt.Sprintf("%.3g×", v)
	}
	return fmt.Sprintf("%.4g %s", v, g.Unit)
}
