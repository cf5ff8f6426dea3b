// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName  = regexp.MustCompile("`([A-Z][A-Za-z]+)/([A-Z][A-Za-z]+)`")
	groupLine = regexp.MustCompile(`\{"([A-Za-z]+)", \(\*[Ss]uite\)\.`)
	runLine   = regexp.MustCompile(`(?:t\.Run\(|^\s*)"([A-Z][A-Za-z]+)"[,:]`)
)

// TestDocumentedTestsExist reads the names in the documentation and looks for them in the sources
// of this suite and of that for contexts.
func TestDocumentedTestsExist(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	ofContexts, err := filepath.Glob("../contexts/contextstest/*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, ofContexts...)
	known := make(map[string]bool)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(source)) {
			for _, match := range append(groupLine.FindAllStringSubmatch(line, -1),
				runLine.FindAllStringSubmatch(line, -1)...) {
				known[match[1]] = true
			}
		}
	}
	document, err := os.ReadFile("../../../docs/dev/comch-conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	names := testName.FindAllStringSubmatch(string(document), -1)
	if len(names) < 50 {
		t.Fatalf("the documentation names %d tests only", len(names))
	}
	for _, name := range names {
		for _, part := range name[1:] {
			if !known[part] {
				t.Errorf("%s is documented, but there is no %s", name[0], part)
			}
		}
	}
}
