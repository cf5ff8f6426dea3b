package buildinfo

import (
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
}
