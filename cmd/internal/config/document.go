// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ChannelFrom returns the channel that a document of the admin listener describes. The error is one
// of status.InvalidValue, and lists all problems.
func ChannelFrom(n *admin.NewChannel) (Channel, error) {
	c := DefaultChannel()
	err := setFrom(n, c.describe)
	return c, err
}

// SetTargets replaces the targets of a channel.
func (c *Channel) SetTargets(to *admin.ChannelTargets) error {
	changed := *c
	changed.Target, changed.Targets = Host{}, nil
	err := setFrom(to, func(s section) {
		all := describeSection("", "", changed.describe)
		s.node.children = []*node{all.child("target"), all.child("targets")}
	})
	if err == nil {
		*c = changed
	}
	return err
}

// SetQoS replaces the rate limits of a channel that limits names.
func (c *Channel) SetQoS(limits *admin.ChannelQoS) error {
	changed := *c
	err := setFrom(limits, changed.QoS.describe)
	if err == nil {
		*c = changed
	}
	return err
}

// setFrom sets the keys of a section that a document has.
func setFrom(document any, describe func(section)) error {
	text, err := json.Marshal(document) // which is YAML, too
	if err != nil {
		return err
	}
	l := &loader{root: describeSection("", "", describe)}
	content, err := parseYAML("", text, l.root)
	if err != nil {
		return status.Errorf(status.InvalidValue, "%w", err)
	}
	l.merged, l.sources, l.problems = content.values, make(map[string]string), content.problems
	err = l.finish(func(reporter) {})
	problems, is := errors.AsType[Problems](err)
	if !is {
		return err
	}
	for i := range problems {
		problems[i].Source = ""
	}
	return status.Errorf(status.InvalidValue, "%w", problems)
}

// Document returns the channel with all keys, as the admin listener shows it.
func (c *Channel) Document() (n admin.NewChannel) {
	text, err := json.Marshal(describeSection("", "", c.describe).document())
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err != nil { // of values that are all text or numbers
		panic(err)
	}
	return n
}

// document returns a section or a value for JSON. Numbers are numbers only where a key allows
// nothing else.
func (n *node) document() any {
	if n.value == nil {
		section := make(map[string]any)
		for _, c := range n.children {
			section[c.key] = c.document()
		}
		return section
	}
	text := n.value.String()
	switch kind := n.value.Type(); {
	case kind == "bool":
		return text == "true"
	case kind == cpusType:
		return json.RawMessage("[" + text + "]")
	case kind == listType && text == "":
		return []string{}
	case kind == listType:
		return strings.Split(text, ",")
	case kind == "int" && !slices.ContainsFunc(extremesOf(n.value), isWord):
		return json.RawMessage(text)
	}
	return text
}

func isWord(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err != nil
}

// ChannelSource is where "channel add" gets a channel from: flags, over a YAML document.
type ChannelSource struct {
	flags *pflag.FlagSet
	keys  map[string]string // by flag
}

// AddFlags adds a flag for each key of a channel, except for its name.
func (s *ChannelSource) AddFlags(f *pflag.FlagSet) {
	s.flags, s.keys = f, make(map[string]string)
	channel := DefaultChannel()
	describeSection("", "", channel.describe).everyValue("", func(path string, n *node) {
		if path == "name" {
			return
		}
		name := n.flag
		if name == "" {
			name = flagOf(path)
		}
		s.keys[name] = path
		n.addFlag(f, name)
	})
}

// flagOf returns the flag of a key that has none in the configuration.
func flagOf(path string) string {
	return strings.NewReplacer("qos.", "", ".", "-", "_", "-").Replace(path)
}

func (n *node) everyValue(path string, visit func(path string, n *node)) {
	if n.value != nil {
		visit(path, n)
	}
	for _, c := range n.children {
		c.everyValue(join(path, c.key), visit)
	}
}

// Load reads the channel: the document of a file, StandardInput for input, "" for none, the name
// unless it is "", and the flags. The error is a problem of the call, and lists all problems.
func (s *ChannelSource) Load(name, file string, input io.Reader) (admin.NewChannel, error) {
	channel := DefaultChannel()
	l := &loader{root: describeSection("", "", channel.describe), merged: values{},
		sources: make(map[string]string)}
	if file != "" {
		content, err := readFile(file, input, l.root)
		if err != nil {
			return admin.NewChannel{}, err
		}
		l.merged, l.sources, l.problems = content.values, content.sources, content.problems
	}
	if name != "" {
		l.merged.set("name", name)
		l.sources["name"] = "NAME"
	}
	s.flags.Visit(func(f *pflag.Flag) {
		path, isKey := s.keys[f.Name]
		if !isKey {
			return
		}
		other := map[string]string{"target": "targets", "targets": "target"}[path]
		if other != "" && !s.flags.Changed(s.flagFor(other)) {
			delete(l.merged, other) // of the file
		}
		l.merged.set(path, f.Value.String())
		l.sources[path] = "--" + f.Name
	})
	control := defaultControl(0)
	control.Timeout = DefaultRelay().Control.Timeout
	if err := l.finish(func(report reporter) { channel.check(report, &control) }); err != nil {
		return admin.NewChannel{}, err
	}
	return channel.given(l.merged)
}

func (s *ChannelSource) flagFor(path string) string {
	for name, key := range s.keys {
		if key == path {
			return name
		}
	}
	return ""
}

// given returns the document of a channel, with the keys that were given alone: those of this
// program may have other defaults than those of the relay.
func (c *Channel) given(merged values) (n admin.NewChannel, err error) {
	document := describeSection("", "", c.describe).document().(map[string]any)
	text, err := json.Marshal(only(document, merged))
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	return n, err
}

// only returns what merged names of a document.
func only(document map[string]any, merged values) map[string]any {
	part := make(map[string]any)
	for key, value := range merged {
		if section, is := value.(values); is {
			part[key] = only(document[key].(map[string]any), section)
		} else {
			part[key] = document[key]
		}
	}
	return part
}
