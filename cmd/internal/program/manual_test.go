// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// writeManuals writes the pages of all programs, as for packages, and returns their directory.
func writeManuals(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for _, name := range []string{"zc-relay", "target", "initiator", "dma-copy"} {
		run := exec.CommandContext(t.Context(), testkit.Manual.Program(t, name), directory)
		if output, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, output)
		}
	}
	return filepath.Join(directory, "man")
}

// groupedPage matches a page with the common options first, and those of a parent among others.
var groupedPage = regexp.MustCompile(`(?s)\.SH OPTIONS\n\.SS Flags\n.*\\fB--device\\fP.*\\fB--rw\\fP.*` +
	`\.SS Workload\n.*\\fB--rwmix\\fP.*\.SS Connection\n.*\\fB--emulated-dir\\fP.*` +
	`\.SS As in the DOCA applications\n.*\\fB--execution-strategy\\fP.*\.SH SEE ALSO\n`)

func TestManualPages(t *testing.T) {
	directory := writeManuals(t)
	t.Run("keep underscores and commands", func(t *testing.T) {
		for page, want := range map[string]string{
			"zc-relay-config.1": "ZC_RELAY__LOG__LEVEL",
			"zc-relay.yaml.5":   `\fBchannels[].limits.ring_memory\fP`,
			"target.yaml.5":     "ZC_TARGET__LOG__LEVEL",
			"zc-relay-run.1":    ".EX\nzc-relay run --storage-server 10.0.0.5:7470 --volume disk\n.EE",
		} {
			content, err := os.ReadFile(filepath.Join(directory, page))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(content), want) {
				t.Errorf("%s lacks %q:\n%s", page, want, content)
			}
		}
	})
	t.Run("have the options in groups", func(t *testing.T) {
		pages, err := filepath.Glob(filepath.Join(directory, "*.1"))
		if err != nil || len(pages) == 0 {
			t.Fatalf("there are no pages: %v", err)
		}
		for _, page := range pages {
			content, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			switch _, others, found := strings.Cut(string(content), ".SS Other flags"); {
			case found:
				t.Errorf("%s: flagGroups lacks these flags: %s", page, others)
			case filepath.Base(page) == "initiator-bench.1" && !groupedPage.Match(content):
				t.Errorf("%s does not match %v:\n%s", page, groupedPage, content)
			}
		}
	})
	t.Run("are rendered without warnings", func(t *testing.T) {
		testkit.RequireTools(t, "man")
		pages, err := filepath.Glob(filepath.Join(directory, "*.[15]"))
		if err != nil || len(pages) == 0 {
			t.Fatalf("there are no pages: %v", err)
		}
		for _, page := range pages {
			// The width and the language are those of the checks of Debian's packages. A line that
			// a long word does not let fill is no mistake.
			man := exec.CommandContext(t.Context(), "man", "--warnings", "--encoding=UTF-8",
				"--local-file", page)
			man.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANROFFSEQ=", "MANWIDTH=80",
				"MANROFFOPT=-Wbreak")
			var warnings strings.Builder
			man.Stderr = &warnings
			text, err := man.Output()
			if err != nil || warnings.Len() > 0 || !strings.Contains(string(text), "NAME") {
				t.Errorf("%s: error %v, %d bytes of text: %s", filepath.Base(page), err, len(text),
					warnings.String())
			}
		}
	})
}
