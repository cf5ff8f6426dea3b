package config

import (
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Dump writes the configuration as YAML, with every key. LoadRelay reads it
// back as the same.
func (c *Relay) Dump(w io.Writer) error { return dump(w, describeSection("", "", c.describe)) }

// Dump writes the configuration as YAML, with every key. LoadTarget reads it
// back as the same.
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
		// Other readers of YAML take some device names for times of day.
		y.Style = yaml.DoubleQuotedStyle
	}
	return y
}
