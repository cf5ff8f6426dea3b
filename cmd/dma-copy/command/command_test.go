// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/dma-copy/internal/dmacopy"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/schematest"
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
		"":                                "--file",
		"--side gpu -f /x -p b1:00.0":     "neither host nor dpu",
		"--side host -p b1:00.0":          "--file",
		"--side host -f /x":               "--pci-addr",
		"--side dpu -f /x -p 03:00.0":     "--rep-pci",
		host + " -r b1:00.0":              "--rep-pci is for the DPU only",
		host + " -d b1:00.0":              "--dev-pci mean the same",
		host + " extra":                   "extra",
		host + " --chunk-size 0":          "--chunk-size 0 ",
		host + " --chunk-size 1GiB":       "--chunk-size 1073741824 ",
		host + " --jobs 0":                "--jobs 0 ",
		host + " --jobs 65":               "--jobs 65 ",
		host + " --timeout 0s":            "must be positive",
		host + " --connect-timeout -1s":   "must be positive",
		host + " --time-limit 0s":         "--time-limit 0s is not positive",
		host + " --log-level loud":        "--log-level",
		host + " --comch-provider pigeon": "pigeon",
		dpu + " --dma-provider pigeon":    "pigeon",
		host + " --json /no/such/file":    "/no/such/file",
		host + " --sdk-log-level loud":    "--sdk-log-level",
	} {
		code, stdout, stderr := call(strings.Fields(line)...)
		if code != program.ExitUsage || stdout != "" || !strings.Contains(stderr, want) ||
			!strings.HasPrefix(stderr, "dma-copy: ") {
			t.Errorf("%q: exit code %d, %q", line, code, stderr)
		}
	}
}

func TestAFileNeedsADirectoryBeforeThePeer(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(dir, "none", "x"): "create the directory first", dir: "is a directory",
	} {
		for _, side := range []string{"-p b1:00.0", "-p 03:00.0 -r b1:00.0"} {
			line := fmt.Sprintf("%s -f %s --emulated-dir %s -o json --connect-timeout 1ms", side,
				path, dir)
			code, stdout, stderr := call(strings.Fields(line)...)
			if code != program.ExitUsage || !strings.Contains(stderr, want) ||
				!strings.Contains(stdout, want) {
				t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
			}
		}
	}
}

func TestAMissingProviderIsReported(t *testing.T) {
	code, _, stderr := call(strings.Fields("--side dpu -f /x -p ff:1f.7 -r b1:00.0 --dma-provider doca")...)
	if code == 0 || code == program.ExitUsage || !strings.Contains(stderr, "DMA provider doca: ") {
		t.Errorf("exit code %d, %q", code, stderr)
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
			"-r, --rep-pci", "-j, --json", "-l, --log-level", "--sdk-log-level", "-v, --version"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s does not tell of %s", flag, want)
			}
		}
	}
}

func TestARepresentorTellsThatThisIsTheDPU(t *testing.T) {
	for line, want := range map[string]string{
		"-f /x -d b1:00.1":                          "host",
		"-f /x -d 03:00.1 -r b1:00.1":               "dpu",
		"-f /x -d 03:00.1 -r b1:00.1 --side dpu":    "dpu",
		"-f /x --pci-addr b1:00.1 --side host":      "host",
		"-f /x -p 03:00.0 --rep-pci b1:00.0 -l 60":  "dpu",
		"-l WARNING -f /x -p b1:00.0 --compat=true": "host",
	} {
		var o options
		flags := pflag.NewFlagSet("dma-copy", pflag.ContinueOnError)
		o.add(flags)
		err := flags.Parse(strings.Fields(line))
		if err == nil {
			err = o.check(flags)
		}
		if err != nil || o.side != want {
			t.Errorf("%s: side %q, error %v", line, o.side, err)
		}
	}
}

func TestACopyIsReportedAsJSON(t *testing.T) {
	s := schematest.Read(t, "../../../docs/schemas/dma-copy.schema.json")
	done := dmacopy.Result{Direction: dmacopy.ToHost, Bytes: 5, Checksum: 0xabc,
		Duration: time.Second}
	o := options{file: "/f", side: "host"}
	for name, c := range map[string]struct {
		result  dmacopy.Result
		failure error
	}{
		"success": {result: done},
		"nobody":  {failure: program.CannotConnect(errors.New("nobody is there"))},
		"wrong":   {failure: program.Usage(errors.New("no such device"))},
	} {
		r := o.describe(c.result, c.failure)
		if err := s.Check(schematest.Document(t, r)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.failure == nil && (r.Direction != "dpu_to_host" || r.Checksum != "00000abc" ||
			r.BytesPerSecond != 5 || r.DurationNs != 1e9) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	code, stdout, _ := call(strings.Fields("-f /x -p b1:00.0 --connect-timeout 1ms -o json " +
		"--emulated-dir " + t.TempDir())...)
	var document any
	if err := json.Unmarshal([]byte(stdout), &document); err != nil || code == program.ExitOK {
		t.Fatalf("exit code %d, %q", code, stdout)
	}
	if err := s.Check(document); err != nil {
		t.Error(err)
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
