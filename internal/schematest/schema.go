// SPDX-License-Identifier: Apache-2.0

// Package schematest checks JSON documents against JSON Schemas in tests.
package schematest

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a JSON Schema, made stricter than its file: an object may have only the properties that
// the schema describes. Users accept more, because later versions of a program may add fields.
type Schema struct{ compiled *jsonschema.Schema }

// Read compiles the schema in a file.
func Read(t testing.TB, path string) *Schema {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	if err != nil {
		t.Fatalf("parse schema %s: %v", path, err)
	}
	restrict(t, path, schema)
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(path, schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile(path)
	if err != nil {
		t.Fatal(err)
	}
	return &Schema{compiled: compiled}
}

// keywords are all that the schemas of this repository use. A schema may contain any others, which
// validators ignore, so that a misspelled keyword would check nothing.
var keywords = []string{
	"$schema", "$id", "$ref", "$defs", "title", "description", "type", "const", "enum", "minimum",
	"maximum", "properties", "additionalProperties", "required", "items", "anyOf",
}

// restrict forbids undescribed properties in a schema and in all schemas inside it, and fails the
// test at an unknown keyword.
func restrict(t testing.TB, path string, schema any) {
	t.Helper()
	s, ok := schema.(map[string]any)
	if !ok {
		t.Fatalf("schema %s: %v is not an object", path, schema)
	}
	for keyword, value := range s {
		if !slices.Contains(keywords, keyword) {
			t.Fatalf("schema %s: unknown keyword %q", path, keyword)
		}
		switch keyword {
		case "items", "additionalProperties":
			restrict(t, path+"/"+keyword, value)
		case "properties", "$defs":
			for name, inner := range value.(map[string]any) {
				restrict(t, path+"/"+keyword+"/"+name, inner)
			}
		case "anyOf":
			for _, inner := range value.([]any) {
				restrict(t, path+"/"+keyword, inner)
			}
		}
	}
	if _, found := s["additionalProperties"]; s["properties"] != nil && !found {
		s["additionalProperties"] = false
	}
}

// Document returns v as a reader of its JSON form sees it.
func Document(t testing.TB, v any) any {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// Check returns nil if a document is valid, and otherwise an error that lists all violations.
func (s *Schema) Check(document any) error { return s.compiled.Validate(document) }
