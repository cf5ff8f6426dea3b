// Package schematest checks that documents are what their schemas say.
package schematest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// Schema is the part of JSON Schema (draft 2020-12) that is used here. It is
// checked more strictly than a user would: what is not described is wrong.
type Schema struct{ root schema }

// Read reads a schema. A keyword that the checker does not know fails the
// test, because it would not be checked.
func Read(t testing.TB, path string) *Schema {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &Schema{}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s.root); err != nil {
		t.Fatal(err)
	}
	return s
}

// Document is what a reader of the JSON form of v sees.
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

// Check returns what is wrong with a document.
func (s *Schema) Check(document any) []string { return s.root.check(&s.root, "", document) }

type schema struct {
	Schema      string             `json:"$schema"`
	ID          string             `json:"$id"`
	Title       string             `json:"title"`
	Description string             `json:"description"`
	Ref         string             `json:"$ref"`
	Defs        map[string]*schema `json:"$defs"`
	Type        types              `json:"type"`
	Const       any                `json:"const"`
	Enum        []any              `json:"enum"`
	Minimum     *float64           `json:"minimum"`
	Maximum     *float64           `json:"maximum"`
	Properties  map[string]*schema `json:"properties"`
	Additional  *schema            `json:"additionalProperties"`
	Required    []string           `json:"required"`
	Items       *schema            `json:"items"`
}

// types is one type or several.
type types []string

func (t *types) UnmarshalJSON(content []byte) error {
	var one string
	if err := json.Unmarshal(content, &one); err == nil {
		*t = types{one}
		return nil
	}
	return json.Unmarshal(content, (*[]string)(t))
}

// check returns what is wrong with a value.
func (s *schema) check(root *schema, path string, value any) []string {
	if s.Ref != "" {
		target, ok := root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
		if !ok {
			return []string{path + ": the schema refers to nothing by " + s.Ref}
		}
		if value == nil && slices.Contains(s.Type, "null") {
			return nil
		}
		return target.check(root, path, value)
	}
	var problems []string
	if !slices.ContainsFunc(s.Type, func(name string) bool { return hasType(value, name) }) {
		return append(problems, fmt.Sprintf("%s: %v is no %v", path, value, s.Type))
	}
	if s.Const != nil && s.Const != value {
		problems = append(problems, fmt.Sprintf("%s: %v is not %v", path, value, s.Const))
	}
	if s.Enum != nil && !slices.Contains(s.Enum, value) {
		problems = append(problems, fmt.Sprintf("%s: %v is none of %v", path, value, s.Enum))
	}
	switch value := value.(type) {
	case float64:
		if (s.Minimum != nil && value < *s.Minimum) || (s.Maximum != nil && value > *s.Maximum) {
			problems = append(problems, fmt.Sprintf("%s: %v is out of bounds", path, value))
		}
	case []any:
		for i, item := range value {
			problems = append(problems, s.Items.check(root, fmt.Sprintf("%s[%d]", path, i), item)...)
		}
	case map[string]any:
		problems = append(problems, s.checkObject(root, path, value)...)
	}
	return problems
}

func (s *schema) checkObject(root *schema, path string, object map[string]any) []string {
	var problems []string
	for _, name := range s.Required {
		if _, ok := object[name]; !ok {
			problems = append(problems, fmt.Sprintf("%s.%s is missing", path, name))
		}
	}
	for name, value := range object {
		property, ok := s.Properties[name]
		if !ok {
			property = s.Additional
		}
		if property == nil {
			problems = append(problems, fmt.Sprintf("%s.%s is not described", path, name))
			continue
		}
		problems = append(problems, property.check(root, path+"."+name, value)...)
	}
	return problems
}

func hasType(value any, name string) bool {
	switch value := value.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	case float64:
		return name == "number" || (name == "integer" && value == math.Trunc(value))
	}
	return false
}
