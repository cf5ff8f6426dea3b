// SPDX-License-Identifier: Apache-2.0

package states

import "testing"

type light string

func TestATableKnowsItsStates(t *testing.T) {
	red := Meaning[light]{State: "red", Text: "nobody may pass", Alerts: true}
	lights := Table[light]{red, {"amber", "it changes soon", false, false},
		{"green", "everybody may pass", true, false}}
	if got := lights.Of("red"); got != red {
		t.Errorf("red means %+v", got)
	}
	if got, want := lights.Of("blue"), (Meaning[light]{State: "blue"}); got != want {
		t.Errorf("a state that is not in the table means %+v", got)
	}
	if got := lights.Names(); got != "red, amber, or green" {
		t.Errorf("the names are %q", got)
	}
}
