// SPDX-License-Identifier: Apache-2.0

package schematest

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDocumentsAreCheckedAgainstTheSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "schema.json")
	text := `{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"type": "object",
		"required": ["count"],
		"properties": {
			"count": {"type": "integer", "minimum": 0},
			"latency": {"anyOf": [{"$ref": "#/$defs/latency"}, {"type": "null"}]},
			"errors": {"type": "object", "additionalProperties": {"type": "integer"}}
		},
		"$defs": {"latency": {"type": "object", "properties": {"max": {"type": "integer"}}}}
	}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Read(t, path)
	type object = map[string]any
	for name, test := range map[string]struct {
		document any
		valid    bool
	}{
		"all fields": {object{"count": 1, "latency": object{"max": 2},
			"errors": object{"A": 1}}, true},
		"null where allowed":   {object{"count": 1, "latency": nil}, true},
		"missing field":        {object{}, false},
		"null where forbidden": {object{"count": nil}, false},
		"below the minimum":    {object{"count": -1}, false},
		"fraction":             {object{"count": 1.5}, false},
		"undescribed field":    {object{"count": 1, "surprise": 1}, false},
		"undescribed inside":   {object{"count": 1, "latency": object{"surprise": 1}}, false},
		"wrong map value":      {object{"count": 1, "errors": object{"A": "1"}}, false},
		"another type":         {3, false},
	} {
		if err := s.Check(Document(t, test.document)); (err == nil) != test.valid {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}
