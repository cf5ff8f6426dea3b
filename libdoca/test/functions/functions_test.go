// SPDX-License-Identifier: Apache-2.0

// Package functions_test says what the emulation of libdoca makes of each function of DOCA's
// headers, and writes the table of docs/reference/libdoca-functions.md.
package functions_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

const (
	library = "../.."
	// list holds the functions of DOCA's headers, one a line: a header, and a name.
	list  = library + "/testdata/functions.txt"
	table = "../../../docs/reference/libdoca-functions.md"
)

// States of a function. The reason follows the second one.
const (
	works   = "works"
	refuses = "refuses: "
	absent  = "absent"
)

type function struct{ header, name string }

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no such files, %v", pattern, err)
	}
	return paths
}

// functionsOfDOCA returns the list.
func functionsOfDOCA(t *testing.T) (all []function) {
	t.Helper()
	previous := ""
	for line := range strings.Lines(read(t, list)) {
		line = strings.TrimSuffix(line, "\n")
		header, name, found := strings.Cut(line, " ")
		if !found || !strings.HasSuffix(header, ".h") || !strings.HasPrefix(name, "doca_") {
			t.Errorf("%q is not a header and a function", line)
		}
		if line <= previous {
			t.Errorf("%q is not sorted, or there twice", line)
		}
		previous = line
		all = append(all, function{header, name})
	}
	return all
}

var (
	listing  = regexp.MustCompile(`(?m)^EMU_FUNCTION\([a-z_]+, (doca_[a-z0-9_]+),`)
	declared = regexp.MustCompile(`\b(doca_[a-z0-9_]+)\(`)
	inline   = regexp.MustCompile(`(?m)^\s*static [^;(]*(?:\(.*\) )?(doca_[a-z0-9_]+)\(`)
)

// emulation is what there is of the emulation.
type emulation struct {
	listed map[string]bool   // in functions.h
	inline map[string]bool   // defined by a header
	header map[string]string // that declares a function
	// refused holds the reasons of functions that always answer NOT_SUPPORTED.
	refused map[string]string
	defined map[string]bool
}

func readEmulation(t *testing.T) *emulation {
	t.Helper()
	e := &emulation{listed: make(map[string]bool), inline: make(map[string]bool),
		header: make(map[string]string), refused: make(map[string]string),
		defined: make(map[string]bool)}
	for _, match := range listing.FindAllStringSubmatch(read(t, library+"/functions.h"), -1) {
		if e.listed[match[1]] {
			t.Errorf("functions.h has %s twice", match[1])
		}
		e.listed[match[1]] = true
	}
	for _, path := range glob(t, library+"/include/*.h") {
		text := read(t, path)
		for _, match := range declared.FindAllStringSubmatch(text, -1) {
			e.header[match[1]] = filepath.Base(path)
		}
		for _, match := range inline.FindAllStringSubmatch(text, -1) {
			e.inline[match[1]] = true
		}
	}
	for _, path := range glob(t, library+"/*.c") {
		for name, reason := range analyze(preprocess(t, path)) {
			name, isFunction := strings.CutPrefix(name, "emu_")
			if !isFunction || !strings.HasPrefix(name, "doca_") {
				continue
			}
			e.defined[name] = true
			if reason != "" {
				e.refused[name] = reason
			}
		}
	}
	return e
}

// states returns the state of each function, and what is wrong with the list and the code.
func (e *emulation) states(all []function) (states map[function]string, faults []string) {
	states = make(map[function]string)
	known := make(map[string]bool)
	for _, f := range all {
		if known[f.name] {
			faults = append(faults, f.name+" is in the list with two headers")
		}
		known[f.name] = true
		switch {
		case e.listed[f.name] && e.refused[f.name] != "":
			states[f] = refuses + e.refused[f.name]
		case e.listed[f.name] || e.inline[f.name]:
			states[f] = works
		default:
			states[f] = absent
		}
		if header := e.header[f.name]; header != "" && header != f.header {
			faults = append(faults, fmt.Sprintf("%s is in the list as a function of %s, and in %s",
				f.name, f.header, header))
		}
		if e.listed[f.name] && e.inline[f.name] {
			faults = append(faults, f.name+" is in functions.h, and defined by a header")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.listed)) {
		if !known[name] {
			faults = append(faults, name+" is in functions.h, and not in the list")
		}
		if !e.defined[name] {
			faults = append(faults, name+" is in functions.h, and has no definition in C")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.defined)) {
		if !e.listed[name] {
			faults = append(faults, name+" is defined, and not in functions.h")
		}
	}
	return states, faults
}

const preface = `# Functions of DOCA's headers in the emulation

Written by ` + "`make generate`" + `: what [libdoca, emulated](../guides/libdoca.md) makes of each
function.

- **works**: it does what it should, within the [limits](../guides/libdoca.md#limits).
- **refuses**: programs that use it link and start, and the call answers DOCA_ERROR_NOT_SUPPORTED,
  or NULL, and tells the reason in the library's log.
- **absent**: neither the library nor its headers have it.

`

func write(all []function, states map[function]string) []byte {
	var text strings.Builder
	text.WriteString(preface)
	text.WriteString("| header | works | refuses | absent |\n|---|---|---|---|\n")
	var headers []string
	counts := make(map[string]*[3]int)
	total := &[3]int{}
	for _, f := range all {
		if counts[f.header] == nil {
			headers, counts[f.header] = append(headers, f.header), &[3]int{}
		}
		column := slices.IndexFunc([]string{works, refuses, absent}, func(state string) bool {
			return strings.HasPrefix(states[f], state)
		})
		counts[f.header][column]++
		total[column]++
	}
	for _, header := range headers {
		c := counts[header]
		fmt.Fprintf(&text, "| %s | %d | %d | %d |\n", header, c[0], c[1], c[2])
	}
	fmt.Fprintf(&text, "| all | %d | %d | %d |\n\n", total[0], total[1], total[2])
	text.WriteString("| header | function | state |\n|---|---|---|\n")
	for _, f := range all {
		fmt.Fprintf(&text, "| %s | `%s` | %s |\n", f.header, f.name, states[f])
	}
	return []byte(text.String())
}

func TestTheTableHasTheFunctionsOfThisBuild(t *testing.T) {
	testkit.RequireTools(t, "gcc")
	all := functionsOfDOCA(t)
	states, faults := readEmulation(t).states(all)
	for _, fault := range faults {
		t.Error(fault)
	}
	goldentest.Check(t, table, write(all, states))
}

func TestEachFunctionHasOneState(t *testing.T) {
	e := &emulation{
		listed:  map[string]bool{"doca_a": true, "doca_b": true, "doca_g": true, "doca_e": true},
		inline:  map[string]bool{"doca_c": true, "doca_e": true},
		header:  map[string]string{"doca_a": "doca_x.h", "doca_b": "doca_y.h"},
		refused: map[string]string{"doca_b": "it is too big", "doca_f": "it is too small"},
		defined: map[string]bool{"doca_a": true, "doca_b": true, "doca_e": true, "doca_f": true},
	}
	all := []function{{"doca_x.h", "doca_a"}, {"doca_x.h", "doca_b"}, {"doca_x.h", "doca_c"},
		{"doca_x.h", "doca_d"}, {"doca_x.h", "doca_e"}, {"doca_z.h", "doca_a"}}
	states, faults := e.states(all)
	for i, want := range []string{works, "refuses: it is too big", works, absent} {
		if got := states[all[i]]; got != want {
			t.Errorf("%s %s, expected %s", all[i].name, got, want)
		}
	}
	want := []string{
		"doca_b is in the list as a function of doca_x.h, and in doca_y.h",
		"doca_e is in functions.h, and defined by a header",
		"doca_a is in the list with two headers",
		"doca_a is in the list as a function of doca_z.h, and in doca_x.h",
		"doca_g is in functions.h, and not in the list",
		"doca_g is in functions.h, and has no definition in C",
		"doca_f is defined, and not in functions.h",
	}
	if !slices.Equal(faults, want) {
		t.Errorf("the faults are %q, expected %q", faults, want)
	}
}
