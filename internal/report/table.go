package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Table is a text of names and values, one pair a line.
type Table struct{ strings.Builder }

// Row adds a line.
func (t *Table) Row(name, format string, args ...any) {
	fmt.Fprintf(t, "%-18s %s\n", name, fmt.Sprintf(format, args...))
}

// Environment adds where the result was obtained.
func (t *Table) Environment(e *Environment) {
	t.Row("environment", "zc-relay %s, %s %s, GOMAXPROCS %d", e.Version, e.GoVersion, e.Architecture, e.MaxProcessors)
	t.Row("", "host %s, kernel %s, %d × %s", orUnknown(e.Hostname), orUnknown(e.Kernel), e.CPUs, orUnknown(e.CPUModel))
	t.Row("", "NUMA nodes %s, clock %s, frequency governor %s",
		orUnknown(e.NUMANodes), orUnknown(e.ClockSource), orUnknown(e.FrequencyGovernor))
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// Errors adds the number of failed requests, and of which kinds they are.
func (t *Table) Errors(count uint64, byCode map[string]uint64) {
	text := fmt.Sprint(count)
	for i, code := range slices.Sorted(maps.Keys(byCode)) {
		text += fmt.Sprintf("%s%s %d", separator(i), code, byCode[code])
	}
	t.Row("errors", "%s", text)
}

func separator(i int) string {
	if i == 0 {
		return ": "
	}
	return ", "
}

// Failure adds why the run failed, if it did.
func (t *Table) Failure(f *Failure) {
	if f != nil {
		t.Row("FAILED", "%s (%s): %s", f.Phase, f.Code, f.Message)
	}
}
