// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const docs = "../../../docs/"

type object = map[string]any

// descriptions are made of routes, by daemon.
var descriptions = map[string]string{
	byRelay: docs + "openapi-relay.json", byTarget: docs + "openapi-target.json",
}

// TestTheDescriptionsOfTheAPIAreThoseOfTheRoutes makes the descriptions. That they are OpenAPI is
// checked where they are compared with what the daemons do, in test/e2e.
func TestTheDescriptionsOfTheAPIAreThoseOfTheRoutes(t *testing.T) {
	for daemon, file := range descriptions {
		var content bytes.Buffer
		encoder := json.NewEncoder(&content)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(describe(t, daemon)); err != nil {
			t.Fatal(err)
		}
		goldentest.Check(t, file, content.Bytes())
	}
}

// describe returns the description of a daemon.
func describe(t *testing.T, daemon string) object {
	c := components{t: t, schemas: object{}}
	paths := object{}
	for i := range routes {
		r := &routes[i]
		if !strings.Contains(r.daemons, daemon) {
			continue
		}
		at := strings.TrimSuffix(r.path, "{$}")
		item, known := paths[at].(object)
		if !known {
			item = object{}
			paths[at] = item
		}
		item[strings.ToLower(r.method)] = c.operation(r)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": map[string]string{byRelay: "zc-relay",
				byTarget: "target of zc-relay"}[daemon],
			"version": apiVersion,
			"license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "What the admin listener of the daemon serves (--admin-listen): a " +
				"Unix socket, which only root and the daemon's user can open, or a loopback " +
				"address. " +
				"A reply that is no success is text. Unless the request as a whole is wrong " +
				"(403, 404, 405), the header " + admin.CodeHeader + " has the symbolic name of " +
				"its status code. The minor number of the version " +
				"rises when something is added. Nothing is removed or changed within a major one.",
		},
		"servers": []any{object{"url": "http://localhost",
			"description": "Through the Unix socket: " +
				"curl --unix-socket PATH http://localhost/status"}},
		"paths":      paths,
		"components": object{"schemas": c.schemas},
	}
}

// components collects the schemas that routes refer to.
type components struct {
	t       *testing.T
	schemas object
}

func (c *components) operation(r *route) object {
	o := object{"operationId": r.operation, "summary": r.summary}
	if r.description != "" {
		o["description"] = r.description
	}
	var parameters []any
	for _, p := range r.parameters {
		schema := object{"type": p.kind}
		if p.kind == "integer" {
			schema["minimum"] = 0
		}
		parameters = append(parameters, object{"name": p.name, "in": p.in, "description": p.text,
			"required": p.in == "path", "schema": schema, "example": p.example})
	}
	if parameters != nil {
		o["parameters"] = parameters
	}
	if !r.request.isNone() {
		o["requestBody"] = object{"required": true, "content": c.content(&r.request)}
	}
	responses := object{"default": failure("Another failure: the code says which.")}
	if r.response.isNone() {
		responses["204"] = object{"description": "Done."}
	} else {
		responses["200"] = object{"description": "Success.", "content": c.content(&r.response)}
	}
	codes := make(map[int][]string)
	for _, code := range r.codes {
		codes[httpStatus(code)] = append(codes[httpStatus(code)], code.String())
	}
	if r.busy {
		codes[http.StatusServiceUnavailable] = []string{
			status.Again.String() + " (a few such requests are in progress)"}
	}
	for code, names := range codes {
		responses[strconv.Itoa(code)] = failure(strings.Join(names, ", "))
	}
	o["responses"] = responses
	return o
}

// failure returns a reply that is no success.
func failure(text string) object {
	return object{"description": text,
		"headers": object{admin.CodeHeader: object{"schema": object{"type": "string"},
			"description": "Symbolic name of the status code."}},
		"content": object{textPlain: object{"schema": object{"type": "string"}}}}
}

func (c *components) content(of *content) object {
	if of.schema == "" {
		schema := object{"type": "string"}
		if of.mediaType == profileType {
			schema = object{}
		}
		return object{of.mediaType: object{"schema": schema}}
	}
	media := object{"schema": c.component(of.schema)}
	if of.example != "" {
		var example any
		if err := json.Unmarshal([]byte(of.example), &example); err != nil {
			c.t.Fatalf("%s: %v", of.example, err)
		}
		media["example"] = example
	}
	return object{"application/json": media}
}

// sources says where the schemas are in docs/schemas, as FILE#PATH. What has no row is made of
// parts, or has no schema.
var sources = map[string]string{
	"Status": "status#", "SessionList": "sessions#", "ChannelList": "channels#",
	"VolumeList": "volumes#", "Channel": "channels#properties/channels/items",
	"Volume": "volumes#properties/volumes/items", "Reload": "administration#properties/reload",
	"Drain": "administration#properties/drain",
}

// component adds a schema, and returns a reference to it.
func (c *components) component(name string) object {
	reference := object{"$ref": "#/components/schemas/" + name}
	if c.schemas[name] != nil {
		return reference
	}
	c.schemas[name] = object{} // ends recursion
	switch name {
	case "OpenAPI", "Trace":
		c.schemas[name] = object{"type": "object"}
	case "LogLevel":
		c.schemas[name] = object{"type": "object", "required": []any{"level"},
			"properties": object{"level": object{"type": "string",
				"enum": []any{"debug", "info", "warn", "error"}}}}
	case "NewChannel":
		c.schemas[name] = c.part("Channel", reflect.TypeFor[admin.NewChannel](), "volume")
	case "ChannelTargets":
		c.schemas[name] = c.part("Channel", reflect.TypeFor[admin.ChannelTargets]())
	case "ChannelQoS":
		c.schemas[name] = c.read("channels#properties/channels/items/properties/qos")
	case "NewVolume":
		c.schemas[name] = c.part("Volume", reflect.TypeFor[admin.NewVolume](), "name", "backend")
	case "VolumeSize":
		c.schemas[name] = object{"type": "object", "required": []any{"size_bytes"},
			"properties": object{
				"size_bytes": object{"type": "integer", "minimum": 0,
					"description": "Size; 0 is that of the storage, if something else has " +
						"changed it."},
				"shrink": object{"type": "boolean",
					"description": "Allow a smaller size: what is beyond it is lost."}}}
	default:
		c.schemas[name] = c.read(sources[name])
	}
	return reference
}

// part returns those properties of a component that a type has as fields.
func (c *components) part(of string, fields reflect.Type, required ...string) object {
	all := c.read(sources[of])["properties"].(object)
	properties := object{}
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		if all[name] == nil {
			c.t.Fatalf("%s has no property %q", of, name)
		}
		properties[name] = all[name]
	}
	part := object{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		part["required"] = required
	}
	return part
}

// read returns a schema of docs/schemas, whose definitions become components.
func (c *components) read(source string) object {
	file, at, found := strings.Cut(source, "#")
	if !found {
		c.t.Fatalf("there is no schema %q", source)
	}
	text, err := os.ReadFile(docs + "schemas/" + file + ".schema.json")
	if err != nil {
		c.t.Fatal(err)
	}
	var whole object
	if err := json.Unmarshal(text, &whole); err != nil {
		c.t.Fatal(err)
	}
	for name, definition := range definitions(whole) {
		if component := componentOf(file, name); c.schemas[component] == nil {
			c.schemas[component] = refer(definition, file)
		}
	}
	schema := whole
	for key := range strings.SplitSeq(at, "/") {
		if key != "" {
			schema = schema[key].(object)
		}
	}
	schema = maps.Clone(schema)
	delete(schema, "$schema")
	delete(schema, "$id")
	delete(schema, "$defs")
	return refer(schema, file).(object)
}

func definitions(schema object) object {
	all, _ := schema["$defs"].(object)
	return all
}

func componentOf(file, definition string) string {
	return strings.ToUpper(file[:1]) + file[1:] + "." + definition
}

// refer returns a schema that refers to components instead of definitions.
func refer(schema any, file string) any {
	switch s := schema.(type) {
	case object:
		changed := object{}
		for key, value := range s {
			if text, is := value.(string); is && key == "$ref" {
				changed[key] = "#/components/schemas/" + componentOf(file, path.Base(text))
			} else {
				changed[key] = refer(value, file)
			}
		}
		return changed
	case []any:
		changed := make([]any, len(s))
		for i, value := range s {
			changed[i] = refer(value, file)
		}
		return changed
	}
	return schema
}

// The examples are what programs can expect: their schemas allow them, and nothing else.
func TestTheExamplesOfTheAPIAreValid(t *testing.T) {
	checked := 0
	for daemon := range descriptions {
		description := describe(t, daemon)
		schemas := description["components"].(object)["schemas"].(object)
		for i := range routes {
			for _, c := range []content{routes[i].request, routes[i].response} {
				if c.example == "" || !strings.Contains(routes[i].daemons, daemon) {
					continue
				}
				whole := object{"$schema": "https://json-schema.org/draft/2020-12/schema",
					"$defs": rename(schemas), "$ref": "#/$defs/" + c.schema}
				text, err := json.Marshal(whole)
				if err != nil {
					t.Fatal(err)
				}
				file := t.TempDir() + "/schema.json"
				if err := os.WriteFile(file, text, 0o600); err != nil {
					t.Fatal(err)
				}
				var example any
				if err := json.Unmarshal([]byte(c.example), &example); err != nil {
					t.Fatal(err)
				}
				if err := schematest.Read(t, file).Check(example); err != nil {
					t.Errorf("%s: %v", routes[i].operation, err)
				}
				checked++
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d examples", checked)
	}
}

// rename returns schemas that refer to definitions instead of components.
func rename(schemas object) any {
	text, err := json.Marshal(schemas)
	if err != nil {
		panic(err)
	}
	var renamed any
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte("#/components/schemas/"),
		[]byte("#/$defs/")), &renamed); err != nil {
		panic(err)
	}
	delete(renamed.(object), "OpenAPI") // any object
	for name, schema := range renamed.(object) {
		if delete(schema.(object), "additionalProperties"); name == "Trace" {
			schema.(object)["additionalProperties"] = object{} // any field
		}
	}
	return renamed
}

func TestNothingIsServedThatIsNotInTheTable(t *testing.T) {
	defer func() {
		fault := fmt.Sprint(recover())
		if !strings.Contains(fault, `no route is called "surprise"`) {
			t.Errorf("the handler was added: %s", fault)
		}
	}()
	a := &Admin{mux: http.NewServeMux()}
	a.handle("surprise", http.NotFoundHandler())
}

func TestEveryRouteHasAnOperationOfItsOwn(t *testing.T) {
	var names []string
	for i := range routes {
		names = append(names, routes[i].operation)
		for _, code := range routes[i].codes {
			if httpStatus(code) == httpStatus(status.Unknown) {
				t.Errorf("%s fails with %v, which has no HTTP status", routes[i].operation, code)
			}
		}
	}
	slices.Sort(names)
	if distinct := slices.Compact(slices.Clone(names)); len(distinct) != len(names) {
		t.Errorf("the operations are %q", names)
	}
}
