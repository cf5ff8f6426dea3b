// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

// pair is a case of each file that differ in a setting.
type pair struct{ before, after *benchsuite.Case }

// pairBySetting finds the cases that belong together although the workloads differ: all pairs that
// differ in the same setting alone, or, if there is one case on each side, these two. It also
// returns the cases that are left.
func pairBySetting(before, after []*benchsuite.Case) (pairs []pair, _, _ []*benchsuite.Case) {
	if len(before) == 1 && len(after) == 1 && before[0].System == after[0].System {
		return []pair{{before[0], after[0]}}, nil, nil
	}
	setting := ""
	candidate := func(b, a *benchsuite.Case) (string, bool) {
		between := settingsBetween(&b.Workload, &a.Workload)
		if b.System != a.System || len(between) != 1 {
			return "", false
		}
		return between[0].Name, true
	}
	// Each case must have one partner: a sweep of depths has several that differ in the depth.
	for _, b := range before {
		var partners []*benchsuite.Case
		for _, a := range after {
			if name, ok := candidate(b, a); ok && (setting == "" || name == setting) {
				partners = append(partners, a)
			}
		}
		if len(partners) != 1 {
			continue
		}
		taken := slices.ContainsFunc(pairs, func(p pair) bool { return p.after == partners[0] })
		if taken {
			return nil, before, after
		}
		setting, _ = candidate(b, partners[0])
		pairs = append(pairs, pair{b, partners[0]})
	}
	isPaired := func(c *benchsuite.Case) bool {
		return slices.ContainsFunc(pairs,
			func(p pair) bool { return p.before == c || p.after == c })
	}
	return pairs, slices.DeleteFunc(before, isPaired), slices.DeleteFunc(after, isPaired)
}

// settingsBetween returns the settings in which two workloads differ, by their names in documents.
func settingsBetween(before, after *benchsuite.Workload) []Difference {
	b, a := settingsOf(before), settingsOf(after)
	names := maps.Clone(b)
	maps.Copy(names, a)
	var differences []Difference
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if b[name] != a[name] {
			differences = append(differences, Difference{name, text(b[name]), text(a[name])})
		}
	}
	return differences
}

// text returns the text of a setting, which documents may omit.
func text(setting any) string {
	if setting == nil {
		return "default"
	}
	return fmt.Sprint(setting)
}

// settingsOf returns the settings of a workload as a document has them.
func settingsOf(w *benchsuite.Workload) map[string]any {
	content, err := json.Marshal(w)
	if err != nil {
		panic("compare: marshal a workload: " + err.Error()) // it consists of numbers and texts
	}
	var settings map[string]any
	if err := json.Unmarshal(content, &settings); err != nil {
		panic("compare: unmarshal a workload: " + err.Error())
	}
	return settings
}
