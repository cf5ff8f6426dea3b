// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/fault"
)

// parseFaults returns the faults of a command line.
func parseFaults(t *testing.T, args ...string) (Faults, error) {
	t.Helper()
	var f Faults
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.AddFlags(flags, fault.Volume, fault.RDMA)
	return f, flags.Parse(args)
}

func TestFaultFlagsNameWhatIsWrong(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	for arguments, want := range map[string]string{
		"--fault volume:write:explode":                                   "neither a condition nor an action",
		"--fault comch:send:drop":                                        "the seams of this program are volume, rdma",
		"--fault volume:write:trace":                                     "needs --trace-operations FILE",
		"--trace-operations " + trace:                                    "add for instance --allow-faults --fault volume:any:trace",
		"--fault volume:write:trace --trace-operations /":                "--trace-operations: open /",
		strings.Repeat("--fault volume:write:freeze ", fault.MaxRules+1): "the limit is 64",
	} {
		f, err := parseFaults(t, append(strings.Fields(arguments), "--allow-faults")...)
		if err == nil {
			_, err = newFaults(f)
			if program.ExitCode(err) != program.ExitUsage {
				t.Errorf("%s is no usage error but %v", arguments, err)
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", arguments, err, want)
		}
	}
}

func TestWithoutRulesNothingIsHooked(t *testing.T) {
	f, err := parseFaults(t)
	if err != nil {
		t.Fatal(err)
	}
	all, err := newFaults(f)
	if err != nil || all.injector != nil || all.recorder != nil || all.trace != nil {
		t.Errorf("faults are %+v, %v", all, err)
	}
}

func TestRulesAndTheirTraceAreTakenTogether(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	f, err := parseFaults(t, "--allow-faults", "--fault", "volume:write:freeze", "--fault", "rdma:any:trace",
		"--trace-operations", trace)
	if err != nil {
		t.Fatal(err)
	}
	all, err := newFaults(f)
	if err != nil {
		t.Fatal(err)
	}
	defer all.trace.Close()
	if n := len(all.injector.Rules()); n != 2 {
		t.Errorf("there are %d rules", n)
	}
	if _, err := os.Stat(trace); err != nil {
		t.Error(err)
	}
}

func TestRulesNeedAPermission(t *testing.T) {
	f, err := parseFaults(t, "--fault", "volume:write:freeze")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newFaults(f); program.ExitCode(err) != program.ExitUsage ||
		!strings.Contains(err.Error(), "--allow-faults") {
		t.Errorf("error is %v", err)
	}
}
