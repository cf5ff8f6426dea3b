// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"slices"
	"strings"
)

// conditions holds what may stand before the action of a rule.
var conditions = []string{"every=", "nth=", "after=", "p=", "seed=", "while=", "kind=", "range="}

// Complete returns the continuations of the beginning of a rule, up to the next colon or equals
// sign, for a shell. The rule concerns one of the seams.
func Complete(text string, seams ...Seam) []string {
	parts := strings.Split(text, ":")
	before := strings.TrimSuffix(text, parts[len(parts)-1])
	var words []string
	switch seam := Seam(parts[0]); {
	case len(parts) == 1:
		for _, s := range seams {
			words = append(words, string(s)+":")
		}
	case !slices.Contains(seams, seam):
	case len(parts) == 2:
		for _, o := range operationsOf(seam) {
			words = append(words, before+o.name+":")
		}
		words = append(words, before+Any+":")
	default:
		actions, _ := allowed(seam, parts[1])
		for a := Trace; a < actionCount; a++ {
			switch {
			case !actions.has(a):
			case a == Delay, a == Error:
				words = append(words, before+a.String()+"=")
			default:
				words = append(words, before+a.String())
			}
		}
		for _, c := range conditions {
			words = append(words, before+c)
		}
	}
	return slices.DeleteFunc(words, func(w string) bool { return !strings.HasPrefix(w, text) })
}
