// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestProgramsHaveTheFlagsThatOthersNameThemFor(t *testing.T) {
	for _, p := range programFlags {
		words := strings.Fields(p.command)
		help, err := exec.CommandContext(t.Context(), testkit.Plain.Program(t, words[0]),
			append(words[1:], "--help")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		for flag := range strings.FieldsSeq(p.flags) {
			if !strings.Contains(string(help), " --"+flag+" ") {
				t.Errorf("%q has no flag --%s", p.command, flag)
			}
		}
	}
}
