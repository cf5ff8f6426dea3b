// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strconv"
	"strings"
)

// Value is a variable of the configuration in text form. It is a pflag.Value as well.
type Value interface {
	// Set parses a value. Its error says what is allowed and does not repeat the text.
	Set(text string) error
	// String returns the value in a form that Set accepts.
	String() string
	// Type returns the word for such values in help texts and tables.
	Type() string
}

// Reload determines when a changed value takes effect.
type Reload uint8

const (
	// Restart means after a restart of the program.
	Restart Reload = iota
	// NewSessions means for sessions that begin after a reload.
	NewSessions
	// AtOnce means immediately at a reload.
	AtOnce
)

// String returns the words for documentation.
func (r Reload) String() string {
	switch r {
	case NewSessions:
		return "new sessions"
	case AtOnce:
		return "at once"
	}
	return "restart"
}

// node is a part of a configuration: a section, a list of sections, or a key with a value.
type node struct {
	key      string
	doc      string
	value    Value   // of a key
	list     *list   // of a list
	children []*node // of a section

	flag, short string
	seconds     bool // the flag, a duration, may lack a unit
	reload      Reload
	required    bool
	instead     string // key of the section that makes this one dispensable
}

// list is a list of sections.
type list struct {
	length func() int
	// resize sets the length of the list. New elements have the defaults.
	resize func(n int)
	// element describes an element of the list, prototype an element with the defaults.
	element   func(i int) *node
	prototype func() *node
	// parseFlag parses an element from the text of the list's flag; nil if there is none.
	parseFlag func(text string) (values, error)
	// shown returns the text of the list's flag without secrets.
	shown func(text string) string
	// single means that flags may describe the only element.
	single bool
	// identifiedBy holds the keys that distinguish elements.
	identifiedBy []string
}

// Key describes a key to those who try every setting.
type Key struct {
	// Path leads to the key, in list elements to that of the first.
	Path string
	// Type is the word for its values in help texts.
	Type string
	// Extremes holds the texts of its smallest and largest values, and of all special ones. It is
	// empty if any text is possible.
	Extremes []string
	Reload   Reload
}

// Variable returns the name of the environment variable that sets the key, given the prefix of the
// daemon's variables.
func (k Key) Variable(prefix string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(k.Path, separator, levelSeparator))
}

// RelayKeys returns every key of zc-relay.
func RelayKeys() []Key { return describeSection("", "", DefaultRelay().describe).keyList("") }

// TargetKeys returns every key of the target.
func TargetKeys() []Key { return describeSection("", "", DefaultTarget().describe).keyList("") }

func (n *node) keyList(path string) []Key {
	var keys []Key
	if n.value != nil {
		keys = append(keys, Key{Path: path, Type: n.value.Type(), Extremes: extremesOf(n.value),
			Reload: n.reload})
	}
	for _, c := range n.children {
		keys = append(keys, c.keyList(join(path, c.key))...)
	}
	if n.list != nil {
		keys = append(keys, n.list.prototype().keyList(join(path, "0"))...)
	}
	return keys
}

// section collects the description of a section.
type section struct{ node *node }

// value adds a key.
func (s section) value(key string, v Value, doc string) *node {
	n := &node{key: key, value: v, doc: doc}
	s.node.children = append(s.node.children, n)
	return n
}

// section adds an inner section.
func (s section) section(key, doc string, describe func(section)) {
	s.node.children = append(s.node.children, describeSection(key, doc, describe))
}

func describeSection(key, doc string, describe func(section)) *node {
	n := &node{key: key, doc: doc}
	describe(section{n})
	return n
}

// addList adds a list of sections to s. New elements are the result of defaults.
func addList[T any](s section, key, doc string, elements *[]T, defaults func() T,
	describe func(*T, section)) *node {
	n := &node{key: key, doc: doc, list: &list{
		length: func() int { return len(*elements) },
		resize: func(n int) {
			for len(*elements) < n {
				*elements = append(*elements, defaults())
			}
			*elements = (*elements)[:n]
		},
		element: func(i int) *node {
			return describeSection(strconv.Itoa(i), doc, func(s section) {
				describe(&(*elements)[i],
					s)
			})
		},
		prototype: func() *node {
			element := defaults()
			return describeSection(anyElement, doc, func(s section) { describe(&element, s) })
		},
	}}
	s.node.children = append(s.node.children, n)
	return n
}

// flagged gives a key a flag, and a one-letter form of it unless short is "".
func (n *node) flagged(name, short string) *node {
	n.flag, n.short = name, short
	return n
}

// inSeconds lets the flag of a duration be a number without a unit, as in the DOCA applications.
func (n *node) inSeconds() *node {
	n.seconds = true
	return n
}

// reloads sets when a changed value takes effect. The default is Restart.
func (n *node) reloads(r Reload) *node {
	n.reload = r
	return n
}

// require makes the key mandatory.
func (n *node) require() *node {
	n.required = true
	return n
}

// requireUnless makes the key mandatory where another key of the section is missing.
func (n *node) requireUnless(instead string) *node {
	n.instead = instead
	return n.require()
}

// child returns the part of a section with the given key, nil if there is none.
func (n *node) child(key string) *node {
	i := slices.IndexFunc(n.children, func(c *node) bool { return c.key == key })
	if i < 0 {
		return nil
	}
	return n.children[i]
}

// find follows a path of keys from n, in which list elements are numbered. It returns the node it
// reaches and the number of known keys.
func (n *node) find(path []string) (found *node, known int) {
	for i, key := range path {
		next := n.child(key)
		if n.list != nil && isIndex(key) {
			next = n.list.prototype()
		}
		if next == nil {
			return n, i
		}
		n = next
	}
	return n, len(path)
}

// separator separates the keys of a path.
const separator = "."

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + separator + key
}

// maxElements is the largest number of elements in a list.
const maxElements = 1024

func isIndex(key string) bool {
	i, err := strconv.Atoi(key)
	return err == nil && i >= 0 && i < maxElements && strconv.Itoa(i) == key
}

// keys lists the keys of a section, for messages.
func (n *node) keys() string {
	var names []string
	for _, c := range n.children {
		names = append(names, c.key)
	}
	return strings.Join(names, ", ")
}
