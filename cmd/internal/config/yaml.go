// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/yamlerror"
)

// fileContent is what a file says.
type fileContent struct {
	values values
	// sources holds the source of the value at each path.
	sources  map[string]string
	problems Problems
}

func newFileContent() *fileContent {
	return &fileContent{values: values{}, sources: make(map[string]string)}
}

// maxFileSize is the largest size of a configuration file in bytes, maxNodes the largest number of
// values after its aliases are expanded.
const (
	maxFileSize = 1 << 20
	maxNodes    = 1 << 16
)

// readFile reads a YAML file. It fails if the file cannot be read or is not YAML; the content holds
// other problems.
func readFile(path string, input io.Reader, root *node) (*fileContent, error) {
	var text []byte
	var err error
	switch {
	case path != StandardInput:
		text, err = files.Read(path, maxFileSize)
	case input == nil:
		err = errors.New("- is no file: only config check and config dump read the standard " +
			"input, because a daemon reads its file again at each reload")
	default:
		path = "standard input"
		text, err = io.ReadAll(io.LimitReader(input, maxFileSize+1))
		if err == nil && len(text) > maxFileSize {
			err = fmt.Errorf("it is larger than %d bytes", maxFileSize)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parseYAML(path, text, root)
}

func parseYAML(name string, text []byte, root *node) (*fileContent, error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return newFileContent(), nil // empty
	} else if err != nil {
		source := name
		line, text := yamlerror.Locate(text, err)
		if line > 0 {
			source += ":" + strconv.Itoa(line)
		}
		return nil, Problems{{Source: source, Text: "not valid YAML: " + text}}
	}
	r := &yamlReader{name: name, root: root, content: newFileContent()}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		r.problem(&document, "", "", "more than one YAML document: only one is allowed")
	}
	if top := document.Content[0]; top.Kind != yaml.ScalarNode || top.Tag != "!!null" {
		if read, ok := r.read(top, root, "").(values); ok {
			r.content.values = read
		}
	}
	return r.content, nil
}

// yamlReader converts a YAML tree to values, and checks its shape and its keys.
type yamlReader struct {
	name    string
	root    *node
	content *fileContent
	nodes   int
}

func (r *yamlReader) source(y *yaml.Node) string { return r.name + ":" + strconv.Itoa(y.Line) }

func (r *yamlReader) problem(y *yaml.Node, path, value, text string) {
	r.content.problems = append(r.content.problems, Problem{Source: r.source(y), Key: path,
		Value: value, Text: text})
}

// read converts y according to n: to a map for a section or a list, to text for a value, and to nil
// if y cannot be used.
func (r *yamlReader) read(y *yaml.Node, n *node, path string) any {
	if r.nodes++; r.nodes > maxNodes {
		if r.nodes == maxNodes+1 {
			r.problem(y, path, "", fmt.Sprintf("too large: aliases make it more than %d values",
				maxNodes))
		}
		return nil
	}
	if y.Kind == yaml.AliasNode {
		y = y.Alias
	}
	r.content.sources[path] = r.source(y)
	switch {
	case y.Kind == yaml.ScalarNode && y.Tag == "!!null":
		r.problem(y, path, "", "has no value: give one, or leave the key out for the default")
	case n.value != nil:
		return r.readValue(y, n, path)
	case n.list != nil:
		return r.readList(y, n, path)
	default:
		return r.readSection(y, n, path)
	}
	return nil
}

func (r *yamlReader) readValue(y *yaml.Node, n *node, path string) any {
	switch y.Kind {
	case yaml.ScalarNode:
		return y.Value
	case yaml.SequenceNode:
		var items []string
		for _, item := range y.Content {
			if item.Kind != yaml.ScalarNode {
				r.problem(item, path, "", "an element is not a simple value")
				return nil
			}
			if item.Value == "" { // an empty list would mean something else
				r.problem(item, path, "", "an element is empty: give it a value, or leave it out")
				return nil
			}
			items = append(items, item.Value)
		}
		return strings.Join(items, ",")
	}
	r.problem(y, path, "", "has keys of its own, but is a "+n.value.Type())
	return nil
}

func (r *yamlReader) readList(y *yaml.Node, n *node, path string) any {
	if y.Kind != yaml.SequenceNode {
		r.problem(y, path, shown(y), fmt.Sprintf("not a list: begin each element with %q", "- "))
		return nil
	}
	if len(y.Content) > maxElements {
		r.problem(y, path, "", fmt.Sprintf("%d elements are more than the %d that are allowed",
			len(y.Content), maxElements))
		return nil
	}
	elements := values{}
	for i, item := range y.Content {
		key := strconv.Itoa(i)
		if v := r.read(item, n.list.prototype(), join(path, key)); v != nil {
			elements[key] = v
		} else {
			elements[key] = values{} // the problem is recorded
		}
	}
	return elements
}

func (r *yamlReader) readSection(y *yaml.Node, n *node, path string) any {
	if y.Kind != yaml.MappingNode {
		r.problem(y, path, shown(y), "not a section: its keys are "+n.keys())
		return nil
	}
	section := values{}
	lines := make(map[string]int)
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		if key.Tag == "!!merge" {
			r.merge(value, n, path, section)
			continue
		}
		child := n.child(key.Value)
		at := join(path, key.Value)
		switch first, twice := lines[key.Value]; {
		case child == nil:
			r.problem(key, at, "", n.unknownKey(r.root, key.Value))
			continue
		case twice:
			r.problem(key, at, "", fmt.Sprintf("is there twice: first in line %d", first))
			continue
		}
		lines[key.Value] = key.Line
		if v := r.read(value, child, at); v != nil {
			section[key.Value] = v
		}
	}
	return section
}

// merge adds the keys that "<<" refers to, unless the section has its own.
func (r *yamlReader) merge(y *yaml.Node, n *node, path string, section values) {
	merged := []*yaml.Node{y}
	if y.Kind == yaml.SequenceNode {
		merged = y.Content
	}
	for _, m := range merged {
		more, ok := r.read(m, n, path).(values)
		if !ok {
			continue
		}
		for key, value := range more {
			if _, there := section[key]; !there {
				section[key] = value
			}
		}
	}
}

// shown returns a scalar for messages, "" for anything else.
func shown(y *yaml.Node) string {
	if y.Kind != yaml.ScalarNode {
		return ""
	}
	return quote(y.Value)
}

// Dump writes the configuration as YAML, with every key, in a form that LoadRelay reads back.
func (c *Relay) Dump(w io.Writer) error { return dump(w, describeSection("", "", c.describe)) }

// Dump writes the configuration as YAML, with every key, in a form that LoadTarget reads back.
func (c *Target) Dump(w io.Writer) error { return dump(w, describeSection("", "", c.describe)) }

func dump(w io.Writer, root *node) error {
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(root.yaml()); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return encoder.Close()
}

func (n *node) yaml() *yaml.Node {
	switch {
	case n.value != nil:
		return valueYAML(n.value)
	case n.list != nil:
		y := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range n.list.length() {
			y.Content = append(y.Content, n.list.element(i).yaml())
		}
		return y
	}
	y := &yaml.Node{Kind: yaml.MappingNode}
	for _, c := range n.children {
		y.Content = append(y.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: c.key}, c.yaml())
	}
	return y
}

func valueYAML(v Value) *yaml.Node {
	text := v.String()
	if isListType(v.Type()) {
		y := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for item := range strings.SplitSeq(text, ",") {
			if item != "" {
				y.Content = append(y.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: item})
			}
		}
		return y
	}
	y := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if text == "" || v.Type() == stringType {
		// Quoted, because some YAML parsers take some device names for times of day.
		y.Style = yaml.DoubleQuotedStyle
	}
	return y
}
