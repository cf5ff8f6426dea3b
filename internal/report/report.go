// SPDX-License-Identifier: Apache-2.0

// Package report holds the common parts of the documents that programs print as their results.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Failure is the reason why a run failed.
type Failure struct {
	// Code is the symbolic name of a status code.
	Code string `json:"code"`
	// Phase names what the program was doing.
	Phase   string `json:"phase"`
	Message string `json:"message"`
}

// FailureOf describes err, nil for no error. message is its text.
func FailureOf(phase string, err error, message string) *Failure {
	if err == nil {
		return nil
	}
	return &Failure{Code: status.CodeOf(err).String(), Phase: phase, Message: message}
}

// Output is the format of a result. It is a flag value.
type Output string

// The output formats.
const (
	Text Output = "text"
	JSON Output = "json"
)

// String returns the name of the format.
func (o *Output) String() string { return string(*o) }

// Set accepts "text" and "json".
func (o *Output) Set(text string) error {
	switch Output(text) {
	case Text, JSON:
		*o = Output(text)
		return nil
	}
	return fmt.Errorf("output format %q is neither text nor json", text)
}

// Type returns the values for help texts.
func (o *Output) Type() string { return "text|json" }

// AddFlag adds --output, short -o.
func (o *Output) AddFlag(f *pflag.FlagSet) {
	f.VarP(o, "output", "o", "output format: text or json")
}

// WriteJSON prints an indented JSON document.
func WriteJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

// Table is a text of names and values, one pair per line.
type Table struct{ strings.Builder }

// Row adds a line.
func (t *Table) Row(name, format string, args ...any) {
	fmt.Fprintf(t, "%-18s %s\n", name, fmt.Sprintf(format, args...))
}

// Environment adds the environment of the result.
func (t *Table) Environment(e *Environment) {
	t.Row("environment", "zc-relay %s, %s %s, GOMAXPROCS %d", e.Version, e.GoVersion,
		e.Architecture, e.MaxProcessors)
	t.Row("", "host %s, kernel %s, %d × %s", orUnknown(e.Hostname), orUnknown(e.Kernel), e.CPUs,
		orUnknown(e.CPUModel))
	t.Row("", "NUMA nodes %s, clock %s, frequency governor %s",
		orUnknown(e.NUMANodes), orUnknown(e.ClockSource), orUnknown(e.FrequencyGovernor))
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// Errors adds the number of failed requests, in total and by code.
func (t *Table) Errors(count uint64, byCode, byCause map[string]uint64) {
	text := fmt.Sprint(count)
	if len(byCode) > 0 {
		text += ": " + counts(byCode)
	}
	if len(byCause) > 0 {
		text += "; causes at the target: " + counts(byCause)
	}
	t.Row("errors", "%s", text)
}

func counts(by map[string]uint64) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, fmt.Sprintf("%s %d", name, by[name]))
	}
	return strings.Join(all, ", ")
}

// Failure adds the reason why the run failed, if it did.
func (t *Table) Failure(f *Failure) {
	if f != nil {
		t.Row("FAILED", "%s (%s): %s", f.Phase, f.Code, f.Message)
	}
}
