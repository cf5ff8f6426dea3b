package main

import (
	"os"
	"strings"
	"testing"
)

func TestOnlyWhatIsBetweenTheMarksIsReplaced(t *testing.T) {
	got, err := replace([]byte("before\n"+begin+"old\n"+end+"after\n"), "new\n")
	if want := "before\n" + begin + "new\n" + end + "after\n"; err != nil || string(got) != want {
		t.Errorf("document is %q, error %v", got, err)
	}
	for _, content := range []string{"", begin, end, end + begin} {
		if _, err := replace([]byte(content), "x"); err == nil {
			t.Errorf("%q was taken for a document with marks", content)
		}
	}
}

func TestTheOperatorsGuideHasTheTableOfThisBuild(t *testing.T) {
	content, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), begin+table()+end) {
		t.Error("docs/operations.md is not up to date: run make generate")
	}
}
