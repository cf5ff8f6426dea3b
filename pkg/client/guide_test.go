// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"os"
	"strings"
	"testing"
)

// TestTheGuideShowsTheseExamples keeps the code in docs/guides/client.md compiling and running.
func TestTheGuideShowsTheseExamples(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guides/client.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("guide_example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	source := unindented(string(examples))
	blocks := strings.Split(string(guide), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("the guide has no code")
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if strings.HasPrefix(code, "package main") {
			continue // the tests of the programs run it
		}
		if !strings.Contains(source, unindented(code)) {
			t.Errorf("no example contains this part of the guide:\n%s", code)
		}
	}
}

func unindented(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimLeft(line, "\t "))
	}
	return b.String()
}
