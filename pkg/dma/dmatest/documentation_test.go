// SPDX-License-Identifier: Apache-2.0

package dmatest

import (
	"os"
	"regexp"
	"testing"
)

// testName matches GROUP/TEST, or GROUP/* for all tests of a group.
var testName = regexp.MustCompile(`\b([A-Z][A-Za-z]+)/([A-Z][A-Za-z]+|\*)`)

func TestDocumentedTestsExist(t *testing.T) {
	known := make(map[string]bool)
	for _, group := range groups {
		known[group.name+"/*"] = true
		for _, test := range group.tests {
			known[group.name+"/"+test.name] = true
		}
	}
	document, err := os.ReadFile("../../../docs/dev/dma-conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, match := range testName.FindAllString(string(document), -1) {
		documented[match] = true
		if !known[match] {
			t.Errorf("%s is documented, but there is no such test", match)
		}
	}
	if len(documented) < 40 {
		t.Errorf("the documentation names only %d tests", len(documented))
	}
}
