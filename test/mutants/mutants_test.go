// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

const root = "../.."

func TestEveryMutantStillMatchesItsFile(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] || !kebab.MatchString(m.name) {
			t.Errorf("name %q is not unique, or not in kebab-case", m.name)
		}
		names[m.name] = true
		if m.breaks == "" || m.old == m.new {
			t.Errorf("%s breaks no promise", m.name)
		}
		text, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		} else if _, err := m.apply(string(text)); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

func TestEveryMutantNamesTestsThatExist(t *testing.T) {
	functions := map[string]string{} // by package
	for _, m := range mutants {
		if len(m.tests) == 0 && m.schedules == 0 {
			t.Errorf("%s names neither tests nor schedules", m.name)
		}
		for _, test := range m.tests {
			names, err := test.names()
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			if functions[test.pkg] == "" {
				functions[test.pkg] = testFunctions(t, test.pkg)
			}
			for _, name := range names {
				if !strings.Contains(functions[test.pkg], "\nfunc "+name+"(") {
					t.Errorf("%s: %s has no test %s", m.name, test.pkg, name)
				}
			}
		}
	}
}

// testFunctions returns the text of a package's test files.
func testFunctions(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// The module under test for the runner: a promise, and tests of it.
var smallModule = map[string]string{
	"go.mod": "module small\n\ngo 1.26\n",
	"p/p.go": `package p

func IsSmall(n int) bool { return n < 10 }

func Double(n int) int { return 2 * n }
`,
	"p/p_test.go": `package p

import "testing"

func TestIsSmall(t *testing.T) {
	t.Run("nine", func(t *testing.T) {
		if !IsSmall(9) {
			t.Error("nine is small")
		}
	})
	for n := 0; !IsSmall(n - 9); n++ {
	}
}

func TestDouble(t *testing.T) { Double(2) }

func TestCrash(t *testing.T) {
	done := make(chan struct{})
	go func() {
		_ = make([]int, Double(2)-4)
		close(done)
	}()
	<-done
}

func TestBroken(t *testing.T) { t.Error("fails unmutated") }
`,
	"q/q_test.go": "package q\n\nfunc TestUndefined(t *testing.T) {}\n",
}

func TestVerdicts(t *testing.T) {
	testkit.RequireTools(t, "git")
	directory := t.TempDir()
	for name, text := range smallModule {
		file := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if output, err := run(t.Context(), compileLimit, directory, nil, "git", "init", "-q"); err != nil {
		t.Fatal(err, output)
	}
	row := func(old, changed, run string) mutant {
		return mutant{name: "x", file: "p/p.go", old: old, new: changed, breaks: "It works.",
			tests: []test{{"./p", run}}}
	}
	for name, c := range map[string]struct {
		row    mutant
		want   outcome
		detail string // of the killer or the reason
	}{
		"killed": {row("n < 10", "n < 9", "^TestIsSmall$"), killed, "p TestIsSmall"},
		"killed by the second": {row("n < 10", "n < 9", "^(TestDouble|TestIsSmall)$"), killed,
			"p TestIsSmall"},
		"killed by a subtest": {row("n < 10", "n < 9", "^TestIsSmall$/^nine$"), killed,
			"p TestIsSmall"},
		"crashes":          {row("2 * n", "n", "^TestCrash$"), killed, "p TestCrash (crashes)"},
		"survives":         {row("2 * n", "3 * n", "^TestDouble$"), survived, ""},
		"does not match":   {row("n < 11", "n < 9", "^TestIsSmall$"), invalid, "occurs 0 times"},
		"matches twice":    {row("return", "panic", "^TestIsSmall$"), invalid, "occurs 2 times"},
		"does not compile": {row("n < 10", "n", "^TestIsSmall$"), invalid, "compile the tests"},
		"no such test": {row("n < 10", "n < 9", "^(TestIsSmall|TestIsBig)$"), invalid,
			"TestIsBig of ./p does not exist"},
		"no such subtest": {row("n < 10", "n < 9", "^TestIsSmall$/^ten$"), invalid, "no subtest"},
		"fails unmutated": {row("n < 10", "n < 9", "^TestBroken$"), invalid,
			"does not pass unmutated"},
		"bad pattern": {row("n < 10", "n < 9", "TestIsSmall"), invalid, "neither"},
		"tests do not compile": {mutant{file: "p/p.go", old: "n < 10", new: "n < 9",
			tests: []test{{"./q", "^TestUndefined$"}}}, invalid, "compile the tests of ./q"},
		"no tests": {mutant{file: "p/p.go", old: "n < 10", new: "n < 9"}, invalid, "names neither"},
	} {
		t.Run(name, func(t *testing.T) {
			verdicts, err := runAll(t.Context(), directory, []mutant{c.row}, 1)
			if err != nil {
				t.Fatal(err)
			}
			v := verdicts[0]
			detail := v.killer
			if v.reason != nil {
				detail = v.reason.Error()
			}
			if v.outcome != c.want || !strings.Contains(detail, c.detail) {
				t.Errorf("%s: %s, want %s: %s", v.outcome, detail, c.want, c.detail)
			}
		})
	}
}

func TestAHangingTestIsNamed(t *testing.T) {
	output := "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n=== RUN   TestB/sub\n" +
		"panic: test timed out after 30s\n\trunning tests:\n\t\tTestB (30s)\n"
	if got, want := culprit(output), "TestB (hangs)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTheSummaryCountsEveryVerdict(t *testing.T) {
	row, documented := &mutant{name: "a"}, &mutant{name: "b", survives: "Nothing can notice."}
	s := summarize([]verdict{
		{row: row, outcome: killed}, {row: documented, outcome: killed},
		{row: documented, outcome: survived},
	})
	if want := "mutants: 2 of 3 killed, 1 survive as documented, 0 invalid"; s.failed() ||
		s.String() != want {
		t.Errorf("failed %v: %v, want %v", s.failed(), s, want)
	}
	for _, v := range []verdict{
		{row: row, outcome: survived}, {row: documented, outcome: invalid},
	} {
		if s := summarize([]verdict{v}); !s.failed() {
			t.Errorf("%s does not fail: %v", v.outcome, s)
		}
	}
}

func TestTheTableKeepsTheRowsThatWereNotRun(t *testing.T) {
	rows := []mutant{{name: "a"}, {name: "b", file: "f", breaks: "B."}, {name: "c", survives: "Why."},
		{name: "new", file: "f", breaks: "N."}}
	document := "Before.\n" + tableBegin + tableHead + "| gone | G. |\n| a | A. |\n| b | old |\n" +
		tableEnd + "\nAfter.\n"
	got, err := updateTable(document, rows, []verdict{
		{row: &rows[1], outcome: killed, killer: "pkg/p TestB (hangs) and simulation seed 9"},
		{row: &rows[2], outcome: survived},
	})
	want := "Before.\n" + tableBegin + tableHead + "| a | A. |\n" +
		"| b | B. | `f` | `pkg/p` `TestB` (hangs) and `simulation` `seed 9` |\n| c |  | `` | – Why. |\n" +
		"| new | N. | `f` | not run yet |\n" + tableEnd + "\nAfter.\n"
	if err != nil || got != want {
		t.Errorf("%v:\n%s\nwant\n%s", err, got, want)
	}
	if _, err := updateTable("No table.", rows, nil); err == nil {
		t.Error("a document without a table is accepted")
	}
}

func TestTheDocumentListsEveryMutant(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/dev/mutants.md"))
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	for _, m := range mutants {
		if !strings.Contains(document, "\n| "+m.name+" |") {
			t.Errorf("docs/dev/mutants.md lacks %s: run make mutants MUTANTS='^%s$'", m.name, m.name)
		}
	}
	if again, err := updateTable(document, mutants, nil); err != nil || again != document {
		t.Errorf("docs/dev/mutants.md lists other mutants, or in another order (%v): run make mutants",
			err)
	}
}
