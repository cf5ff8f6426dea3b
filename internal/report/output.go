package report

import (
	"encoding/json"
	"fmt"
	"io"
)

// Output is how a result is printed. It is a flag value.
type Output string

// The output formats.
const (
	Text Output = "text"
	JSON Output = "json"
)

// String implements pflag.Value.
func (o *Output) String() string { return string(*o) }

// Set implements pflag.Value.
func (o *Output) Set(text string) error {
	switch Output(text) {
	case Text, JSON:
		*o = Output(text)
		return nil
	}
	return fmt.Errorf("output format %q is neither text nor json", text)
}

// Type implements pflag.Value.
func (o *Output) Type() string { return "text|json" }

// WriteJSON prints a document with a line for each field.
func WriteJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}
