// SPDX-License-Identifier: Apache-2.0

package argp

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// flags holds the flags of the programs in these tests.
type flags struct {
	device, file string
	cpus         []string
	level        string
	compat       bool
	limit        int
	timeout      Timeout
	implied      bool
}

func (f *flags) add(set *pflag.FlagSet) {
	set.StringVarP(&f.device, "pci-addr", "p", "", "")
	set.StringVarP(&f.device, "dev-pci", "d", "", "")
	set.StringVarP(&f.file, "file", "f", "", "")
	set.StringArrayVar(&f.cpus, "cpu", nil, "")
	set.StringVarP(&f.level, "log-level", "l", "info", "")
	set.BoolVar(&f.compat, "compat", false, "")
	set.IntVar(&f.limit, "limit", 0, "")
	set.Var(&f.timeout, "control-timeout", "")
}

// call runs a program with one command, or with the commands work and put, the first of which may
// be left out.
func call(commands bool, arguments ...string) (f flags, operands []string, output string,
	err error) {
	var out bytes.Buffer
	root := &cobra.Command{Use: "tool", Version: "1", SilenceUsage: true, SilenceErrors: true}
	root.SetOut(&out)
	root.SetErr(&out)
	work := root
	if commands {
		work = &cobra.Command{Use: "work", Args: cobra.NoArgs}
		put := &cobra.Command{Use: "put", RunE: func(_ *cobra.Command, names []string) error {
			operands = names
			return nil
		}}
		root.AddCommand(work, put)
	}
	work.Args = cobra.NoArgs
	work.RunE = func(cmd *cobra.Command, _ []string) error {
		f.implied = Implied(cmd)
		return nil
	}
	f.add(work.Flags())
	Adopt(root, work, []string{"pci-addr", "dev-pci"})
	root.SetArgs(Arguments(root, arguments))
	err = root.Execute()
	return f, operands, out.String(), err
}

func TestDPDKFlagsAreDroppedWithAWarning(t *testing.T) {
	for _, commands := range []bool{false, true} {
		f, _, output, err := call(commands, "-a", "03:00.0", "-l", "0-1", "--no-huge", "--", "-d",
			"b1:00.1", "-f", "/x")
		if err != nil || f.device != "b1:00.1" || f.file != "/x" || f.level != "info" {
			t.Errorf("flags %+v, error %v", f, err)
		}
		if want := "tool: ignored -a 03:00.0 -l 0-1 --no-huge: these are DPDK flags, " +
			"and it does not use DPDK\n"; output != want {
			t.Errorf("the output is %q", output)
		}
		if f, _, output, err = call(commands, "--", "-d", "b1:00.1"); err != nil || output != "" ||
			f.device != "b1:00.1" {
			t.Errorf("without DPDK flags: %+v, output %q, error %v", f, output, err)
		}
	}
}

func TestOperandsOfACommandAreNotTakenForProgramFlags(t *testing.T) {
	_, operands, output, err := call(true, "put", "--", "-file")
	if err != nil || !slices.Equal(operands, []string{"-file"}) || output != "" {
		t.Errorf("operands %q, output %q, error %v", operands, output, err)
	}
}

func TestTheCommandOfAnApplicationMayBeLeftOut(t *testing.T) {
	for _, line := range []string{
		"-d b1:00.1 --compat -f /x", "--compat -d b1:00.1 -f /x", "-f /x -d b1:00.1 --compat",
		"work -d b1:00.1 --compat -f /x",
	} {
		f, _, _, err := call(true, strings.Fields(line)...)
		if err != nil || f.device != "b1:00.1" || f.file != "/x" || !f.compat ||
			f.implied == strings.HasPrefix(line, "work") {
			t.Errorf("%s: %+v, error %v", line, f, err)
		}
	}
	for line, want := range map[string]string{
		"-d b1:00.1 dance":   `unknown command "dance"`,
		"dance -d b1:00.1":   `unknown command "dance"`,
		"-d b1:00.1 --dance": "unknown flag: --dance",
	} {
		if _, _, _, err := call(true, strings.Fields(line)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", line, err)
		}
	}
}

func TestVersionAndHelpNeedNoCommand(t *testing.T) {
	for _, line := range []string{"-v", "--version", "work -v", "-d b1:00.1 -v"} {
		if _, _, output, err := call(true, strings.Fields(line)...); err != nil ||
			!strings.Contains(output, "version 1") {
			t.Errorf("%s: %q, error %v", line, output, err)
		}
	}
	if _, _, output, err := call(true, "-h"); err != nil || !strings.Contains(output, "put") {
		t.Errorf("help: %q, error %v", output, err)
	}
}

func TestOtherProgramsKeepTheirArguments(t *testing.T) {
	root := &cobra.Command{Use: "tool"}
	arguments := []string{"-a", "--", "-b"}
	if got := Arguments(root, arguments); !slices.Equal(got, arguments) {
		t.Errorf("the arguments became %q", got)
	}
}

func TestAFileStandsForFlags(t *testing.T) {
	for _, arguments := range [][]string{{"-j", "testdata/parameters.json"},
		{"--json=testdata/parameters.json"}} {
		f, _, output, err := call(true, arguments...)
		if err != nil || f.file != "/tmp/file_to_read.txt" || f.device != "03:00.0" ||
			f.level != "60" || !f.compat || f.limit != 3 ||
			time.Duration(f.timeout) != 5*time.Second || !slices.Equal(f.cpus, []string{"0", "2"}) {
			t.Errorf("%+v, error %v", f, err)
		}
		if want := "tool: ignored the section doca_dpdk_flags of testdata/parameters.json"; !strings.
			HasPrefix(output, want) {
			t.Errorf("output %q", output)
		}
	}
}

func TestTheCommandLineHasPrecedenceOverTheFile(t *testing.T) {
	for _, device := range []string{"--pci-addr", "--dev-pci", "-p", "-d"} {
		f, _, _, err := call(false, "--json", "testdata/parameters.json", device, "04:00.0", "-f",
			"/other", "--compat=false", "--cpu", "7")
		if err != nil || f.file != "/other" || f.device != "04:00.0" || f.compat || f.limit != 3 ||
			!slices.Equal(f.cpus, []string{"7"}) {
			t.Errorf("%s: %+v, error %v", device, f, err)
		}
	}
}

func TestAWrongFileIsExplained(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large.json")
	if err := os.WriteFile(large, bytes.Repeat([]byte{' '}, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		large:                           "larger than 1048576 bytes",
		"/no/such/file":                 "/no/such/file",
		"testdata/unknown_flag.json":    `"colour" is not a flag of this program`,
		"testdata/wrong_section.json":   "doca_flags",
		"testdata/not_a_value.json":     "must be a string, a number, true or false",
		"testdata/another_file.json":    `"json" is not a flag`,
		"testdata/invalid_value.json":   "neither a duration",
		"testdata/parameters.json.bad":  "--json",
		"testdata/wrong_sdk_level.json": "loud",
	} {
		if _, _, _, err := call(false, "--json", path); err == nil || !strings.Contains(err.Error(),
			want) || !strings.Contains(err.Error(), "--json") {
			t.Errorf("%s: error %v", path, err)
		}
	}
}

func TestATimeoutMayHaveNoUnit(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"5": 5 * time.Second, "500ms": 500 * time.Millisecond, "1m30s": 90 * time.Second,
		"0": 0, "-1s": -time.Second,
	} {
		var v Timeout
		if err := v.Set(text); err != nil || time.Duration(v) != want ||
			v.String() != want.String() {
			t.Errorf("%q is %v, error %v", text, v.String(), err)
		}
	}
	for _, text := range []string{"", "x", "-5", "5 s", "5.5", "99999999999", "1e3"} {
		if err := new(Timeout).Set(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func FuzzParameters(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("there are no files", err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		if p, err := parse(text); err == nil {
			set := pflag.NewFlagSet("tool", pflag.ContinueOnError)
			set.SetOutput(io.Discard)
			new(flags).add(set)
			_ = p.apply(set, nil)
		}
	})
}
