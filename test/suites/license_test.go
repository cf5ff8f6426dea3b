// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEverySourceFileNamesItsLicense(t *testing.T) {
	const identifier = "SPDX-License-Identifier: Apache-2.0"
	kinds := []string{".go", ".s", ".c", ".h", ".proto", ".sh"}
	for _, file := range trackedFiles(t) {
		if !slices.Contains(kinds, filepath.Ext(file)) || strings.Contains(file, "/testdata/") {
			continue
		}
		text, err := os.ReadFile("../../" + file)
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		beginning := strings.SplitAfterN(string(text), "\n", 4)
		if !strings.Contains(strings.Join(beginning[:min(3, len(beginning))], ""), identifier) {
			t.Errorf("%s does not begin with %q: run scripts/add-license-headers.sh", file, identifier)
		}
	}
}
