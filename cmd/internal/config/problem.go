// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/internal/similar"
)

// Problem is one problem of a configuration.
type Problem struct {
	// Source is the source of the value: FILE:LINE, an environment variable or a flag; "" if none
	// gave one.
	Source string `json:"source,omitempty"`
	// Key is the path of the key, for instance "channels.0.volume".
	Key string `json:"key,omitempty"`
	// Value is the value given, quoted, or "".
	Value string `json:"value,omitempty"`
	// Text describes the problem and what is allowed.
	Text string `json:"text"`
}

// String returns all parts on one line.
func (p Problem) String() string {
	parts := make([]string, 0, 4)
	for _, part := range []string{p.Source, p.Key, p.Value, p.Text} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Problems holds all problems of a configuration.
type Problems []Problem

// maxShownProblems bounds an error. A mistake in a script that generates channels is made in
// hundreds of them.
const maxShownProblems = 10

// Error returns a line for each of the first problems, and how many more there are.
func (p Problems) Error() string {
	if rest := len(p) - maxShownProblems; rest > 0 {
		return fmt.Sprintf("%s\nand %d more: \"config check\" lists more",
			p[:maxShownProblems].lines(), rest)
	}
	return p.lines()
}

// maxListedProblems bounds what "config check" prints for people.
const maxListedProblems = 50

// list returns a line for each problem, and for many of them how many more there are.
func (p Problems) list() string {
	if rest := len(p) - maxListedProblems; rest > 0 {
		return fmt.Sprintf("%s\nand %d more: correct these first; --output json lists all",
			p[:maxListedProblems].lines(), rest)
	}
	return p.lines()
}

// lines returns a line for each problem.
func (p Problems) lines() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// sort orders problems in a file by line, before all others.
func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int { return cmp.Compare(a.line(), b.line()) })
}

// line returns the line of the source in its file, math.MaxInt if it has none.
func (p Problem) line() int {
	line, err := strconv.Atoi(p.Source[strings.LastIndexByte(p.Source, ':')+1:])
	if err != nil {
		return math.MaxInt
	}
	return line
}

// orNil returns p as an error, nil if there are no problems.
func (p Problems) orNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// maxShownValue is the largest number of bytes of a value in a message.
const maxShownValue = 80

func quote(text string) string {
	if len(text) > maxShownValue {
		text = text[:maxShownValue] + "…"
	}
	return fmt.Sprintf("%q", text)
}

// suggestion returns the key that was probably meant, "" if none is similar.
func (n *node) suggestion(key string) string {
	known := make([]string, len(n.children))
	for i, c := range n.children {
		known[i] = c.key
	}
	return similar.Closest(strings.ToLower(key), known)
}

// unknownKey returns the message for a key that does not exist in a section, list, or value, which
// is part of root.
func (n *node) unknownKey(root *node, key string) string {
	switch {
	case n.value != nil:
		return "unknown key: " + quote(n.key) + " is a value and has no keys"
	case n.list != nil:
		return fmt.Sprintf("unknown key: this is a list, whose elements are numbered from 0 to %d",
			maxElements-1)
	}
	if s := n.suggestion(key); s != "" {
		return fmt.Sprintf("unknown key: did you mean %q?", s)
	}
	if places := n.elsewhere(root, key); len(places) > 0 && len(places) <= maxPlaces {
		return "unknown key: did you mean " + strings.Join(places, " or ") + "?"
	}
	return "unknown key: the keys here are " + n.keys()
}

// maxPlaces bounds how many keys of other sections a message suggests.
const maxPlaces = 3

// elsewhere returns the quoted paths of keys in other sections that key, in n, may stand for: they
// have its name, with or without that of n in front, or are spelled with underscores for dots.
func (n *node) elsewhere(root *node, key string) []string {
	key = strings.ToLower(key)
	var places []string
	for _, k := range root.keyList("") {
		last := k.Path[strings.LastIndex(k.Path, separator)+1:]
		if last == key || n.key != "" && last == n.key+"_"+key ||
			strings.ReplaceAll(k.Path, separator, "_") == key {
			places = append(places, quote(k.Path))
		}
	}
	return places
}

// lacksOf returns the sections of another configuration that this one does not have.
func (n *node) lacksOf(other *node) []string {
	var keys []string
	for _, c := range other.children {
		if n.child(c.key) == nil {
			keys = append(keys, c.key)
		}
	}
	return keys
}

// isOfOther returns what is wrong with a file that is the configuration of the other daemon, nil if
// it is not.
func (f *fileContent) isOfOther(root *node, prefix string) Problems {
	program, name, reader := "relay", "target", "target"
	other := describeSection("", "", DefaultTarget().describe)
	if prefix == TargetPrefix {
		program, name, reader = "target", "relay", "zc-relay"
		other = describeSection("", "", DefaultRelay().describe)
	}
	foreign := root.lacksOf(other)
	for _, own := range other.lacksOf(root) {
		if _, has := f.sources[own]; has {
			return nil
		}
	}
	for _, p := range f.problems {
		if slices.Contains(foreign, p.Key) {
			return Problems{{Source: p.Source, Key: p.Key, Text: fmt.Sprintf("this looks like the "+
				"configuration of a %s, and a %s cannot read it: give the file to %q, or name "+
				"another", name, program, reader)}}
		}
	}
	return nil
}
