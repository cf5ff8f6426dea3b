package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/dma-copy/internal/dmacopy"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call runs the program and returns its exit code and output.
func call(arguments ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newCommand()
	root.SetOut(&out)
	root.SetErr(&errs)
	code = program.Run(context.Background(), root, arguments)
	return code, out.String(), errs.String()
}

func TestWrongCallsAreUsageErrors(t *testing.T) {
	const host, dpu = "--side host -f /x -p b1:00.0", "--side dpu -f /x -p 03:00.0 -r b1:00.0"
	for line, want := range map[string]string{
		"":                                    "--side",
		"--side gpu -f /x -p b1:00.0":         "neither host nor dpu",
		"--side host -p b1:00.0":              "--file",
		"--side host -f /x":                   "--pci-addr",
		"--side dpu -f /x -p 03:00.0":         "--rep-pci",
		host + " -r b1:00.0":                  "--rep-pci is for the DPU only",
		host + " -d b1:00.0":                  "--dev-pci mean the same",
		host + " extra":                       "extra",
		host + " --chunk-size 0":              "chunk size 0 ",
		host + " --chunk-size 1GiB":           "chunk size 1073741824 ",
		host + " --jobs 0":                    "0 slots",
		host + " --jobs 65":                   "65 slots",
		host + " --timeout 0s":                "must be positive",
		host + " --connect-timeout -1s":       "must be positive",
		host + " --time-limit 0s":             "--time-limit 0s is not positive",
		host + " --log-level loud":            "--log-level",
		host + " --comch-provider pigeon":     "pigeon",
		dpu + " --dma-provider doca":          "not part of this build",
		dpu + " --dma-provider pigeon":        "pigeon",
		host + " --json /no/such/file":        "/no/such/file",
		"--json testdata/unknown_flag.json":   "colour",
		"--json testdata/wrong_section.json":  "doca_flags",
		"--json testdata/not_a_value.json":    "must be a string, a number, true or false",
		"--json testdata/another_file.json":   `"json" is not a flag`,
		"--json testdata/parameters.json.bad": "--json",
	} {
		code, stdout, stderr := call(strings.Fields(line)...)
		if code != program.ExitUsage || stdout != "" || !strings.Contains(stderr, want) ||
			!strings.HasPrefix(stderr, "dma-copy: ") {
			t.Errorf("%q: exit code %d, %q", line, code, stderr)
		}
	}
}

func TestVersionAndHelpHaveTheOriginalsFlags(t *testing.T) {
	for _, flag := range []string{"-v", "--version"} {
		if code, stdout, _ := call(flag); code != 0 || !strings.HasPrefix(stdout, "dma-copy ") {
			t.Errorf("%s: exit code %d, %q", flag, code, stdout)
		}
	}
	for _, flag := range []string{"-h", "--help"} {
		_, stdout, _ := call(flag)
		for _, want := range []string{"-f, --file", "-p, --pci-addr", "-d, --dev-pci",
			"-r, --rep-pci", "-j, --json", "-l, --log-level", "-v, --version"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s does not tell of %s", flag, want)
			}
		}
	}
}

// flagsOf parses a command line with its JSON file.
func flagsOf(t *testing.T, path string, arguments ...string) *pflag.FlagSet {
	t.Helper()
	flags := newCommand().Flags()
	if err := flags.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	if err := loadParameters(path, flags); err != nil {
		t.Fatal(err)
	}
	return flags
}

func TestAFileOfParametersStandsForFlags(t *testing.T) {
	flags := flagsOf(t, filepath.Join("testdata", "parameters.json"))
	for name, want := range map[string]string{
		"file": "/tmp/file_to_read.txt", "pci-addr": "03:00.0", "rep-pci": "b1:00.0",
		"log-level": "60", "compat": "true", "jobs": "3",
	} {
		if got := flags.Lookup(name).Value.String(); got != want {
			t.Errorf("--%s is %q, want %q", name, got, want)
		}
	}
}

func TestTheCommandLineHasPrecedenceOverTheFile(t *testing.T) {
	for _, device := range []string{"--pci-addr", "--dev-pci", "-p", "-d"} {
		flags := flagsOf(t, filepath.Join("testdata", "parameters.json"), device, "04:00.0", "-f",
			"/other", "--compat=false")
		for name, want := range map[string]string{"file": "/other", "pci-addr": "04:00.0",
			"rep-pci": "b1:00.0", "compat": "false"} {
			if got := flags.Lookup(name).Value.String(); got != want {
				t.Errorf("%s: --%s is %q, want %q", device, name, got, want)
			}
		}
	}
}

func TestALargeFileOfParametersIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.json")
	if err := os.WriteFile(path, bytes.Repeat([]byte{' '}, maxParameters+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := loadParameters(path, newCommand().Flags()); err == nil ||
		!strings.Contains(err.Error(), "larger") {
		t.Errorf("got %v", err)
	}
}

func FuzzParameters(f *testing.F) {
	for _, name := range []string{"parameters.json", "unknown_flag.json", "wrong_section.json",
		"not_a_value.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		if p, err := parseParameters(text); err == nil {
			_ = p.apply(newCommand().Flags())
		}
	})
}

func TestTheBarIsAsLongAsWhatHasArrived(t *testing.T) {
	for moved, want := range map[uint64]string{
		0:   "[..............................]   0 %, 0 of 300 bytes",
		150: "[###############...............]  50 %, 150 of 300 bytes",
		300: "[##############################] 100 %, 300 of 300 bytes",
	} {
		if got := bar(moved, 300, time.Second); !strings.HasPrefix(got, want) {
			t.Errorf("%d bytes: %q", moved, got)
		}
	}
	if got := bar(100<<20, 300<<20, 10*time.Second); !strings.HasSuffix(got,
		"10.0 MiB/s, 20s left") {
		t.Errorf("%q", got)
	}
}

func TestOnlyATerminalShowsTheBar(t *testing.T) {
	var b bytes.Buffer
	p := newProgressBar(&b)
	p.observe(1, 2)
	p.observe(2, 2)
	p.end("/f", dmacopy.Result{Direction: dmacopy.ToDPU, Bytes: 2, Duration: time.Second}, nil)
	if got := b.String(); got != "/f: 2 bytes copied from host to DPU in 1.00s, 0.00 MiB/s\n" {
		t.Errorf("%q", got)
	}
}
