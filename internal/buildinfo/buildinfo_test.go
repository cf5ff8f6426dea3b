// SPDX-License-Identifier: Apache-2.0

package buildinfo

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheLineTellsNameVersionAndToolchain(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = "v1.2.3"
	line := String("prog")
	for _, want := range []string{"prog v1.2.3", runtime.Version(), runtime.GOARCH} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	if strings.ContainsAny(line, "\n") {
		t.Errorf("%q is more than one line", line)
	}
}

func TestABuildWithoutAVersionSaysSo(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = ""
	if got := Version(); !strings.HasPrefix(got, "devel") {
		t.Errorf("version is %q", got)
	}
	if line := String("prog"); Revision() == "" && !strings.Contains(line, "(unknown revision)") {
		t.Errorf("the line is %q", line)
	}
}

// TestTheLinkersFlagsNameTheSource gives the flags of make build to a build that may not ask git.
func TestTheLinkersFlagsNameTheSource(t *testing.T) {
	head, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Skip("not in a checkout: ", err)
	}
	flags, err := exec.Command("../../scripts/ldflags.sh", "v1.2.3").Output()
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command("go", "test", "-count=1", "-vet=off", "-buildvcs=false",
		"-run", "^TestShowDescription$", "-v", "-ldflags", strings.TrimSpace(string(flags)), ".")
	run.Env = append(os.Environ(), "ZC_RELAY_SHOW_DESCRIPTION=yes")
	output, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	for _, want := range []string{`"version":"v1.2.3"`,
		`"revision":"` + strings.TrimSpace(string(head)) + `"`, `"revision_time":"20`} {
		if !strings.Contains(string(output), want) {
			t.Errorf("%s lacks %s", output, want)
		}
	}
}

// TestShowDescription is for TestTheLinkersFlagsNameTheSource.
func TestShowDescription(t *testing.T) {
	if os.Getenv("ZC_RELAY_SHOW_DESCRIPTION") == "" {
		t.Skip("is run by another test")
	}
	text, err := json.Marshal(Describe("prog"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
}
