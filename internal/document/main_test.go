package main

import (
	"os"
	"strings"
	"testing"
)

func TestOnlyWhatIsBetweenTheMarksIsReplaced(t *testing.T) {
	begin, end := begin("x"), end("x")
	got, err := replace([]byte("before\n"+begin+"old\n"+end+"after\n"), "x", "new\n")
	if want := "before\n" + begin + "new\n" + end + "after\n"; err != nil || string(got) != want {
		t.Errorf("document is %q, error %v", got, err)
	}
	for _, content := range []string{"", begin, end, end + begin} {
		if _, err := replace([]byte(content), "x", "new"); err == nil {
			t.Errorf("%q was taken for a document with marks", content)
		}
	}
}

func TestTheOperatorsGuideHasTheTablesOfThisBuild(t *testing.T) {
	content, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if !strings.Contains(string(content), begin(table.name)+table.make()+end(table.name)) {
			t.Errorf("docs/operations.md is not up to date about the %s: run make generate", table.name)
		}
	}
}
