// SPDX-License-Identifier: Apache-2.0

package yamlerror_test

import (
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/yamlerror"
)

func TestAMistakeIsFoundInItsLine(t *testing.T) {
	const begin = "log:\n  level: info\nchannels:\n"
	for content, want := range map[string]int{
		begin + "  - target: \"a\n    volume: disk\n":       4,
		begin + "  - target: a\n   volume: disk\n":          5,
		begin + "  - {target: a, volume: disk\n":            4,
		begin + "  - {target: a,\n     volume: b: c}\n":     4,
		begin + "\t- target: a\n":                           4,
		begin + "  - target: a: b\n":                        4,
		begin + "  - target: *a\n":                          4,
		begin + "  - {target: a,\n     volume: b}\n  - [\n": 6,
		"%x\na: b\n": 1,
		"a: \"b":     1,
		strings.Repeat("a: b\n", 1) + "---\nc: d\ne: f: g\n": 4,
	} {
		var node yaml.Node
		decoder := yaml.NewDecoder(strings.NewReader(content))
		err := decoder.Decode(&node)
		if err == nil {
			err = decoder.Decode(&node)
		}
		if err == nil {
			t.Fatalf("%q is YAML", content)
		}
		line, text := yamlerror.Locate([]byte(content), err)
		if line != want || text == "" || regexp.MustCompile(`line \d`).MatchString(text) {
			t.Errorf("%q: line %d, want %d: %s (of %v)", content, line, want, text, err)
		}
	}
}

func TestATabIsNamed(t *testing.T) {
	const begin = "channels:\n"
	for content, want := range map[string]int{
		begin + "\t- target: a\n":                          2,
		begin + "  - target: a\n\tvolume: b\n":             3,
		begin + "  - target: a\n    volume: b\n  \tc: d\n": 4,
	} {
		err := yaml.Unmarshal([]byte(content), &yaml.Node{})
		if err == nil {
			t.Fatalf("%q is YAML", content)
		}
		line, text := yamlerror.Locate([]byte(content), err)
		if line != want || text != "the line is indented with a tab: YAML wants spaces" {
			t.Errorf("%q: line %d: %s", content, line, text)
		}
	}
}

func TestALongFileKeepsTheLineOfTheParser(t *testing.T) {
	content := strings.Repeat("- a\n", 1<<14) + "- b: c: d\n" + strings.Repeat("- a\n", 1<<14)
	var node yaml.Node
	err := yaml.Unmarshal([]byte(content), &node)
	if err == nil {
		t.Fatal("it is YAML")
	}
	if line, text := yamlerror.Locate([]byte(content), err); line != 1<<14+1 {
		t.Errorf("line %d: %s", line, text)
	}
}
