// SPDX-License-Identifier: Apache-2.0

// Package config reads the configuration of a daemon: defaults, then a YAML
// file, then environment variables, then flags, each over the one before.
//
// A configuration is a struct of sections, one for each subject, which the
// program hands to those whose subject it is. Every section describes its
// keys: where the value goes, what it may be, its flag, and what it takes to
// change it while the program runs. All else follows from that description:
// strict reading, errors that name the place, flags, variables, the dump, what
// a reload changes, and the documentation.
package config

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/internal/similar"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Sources are the origins of values, besides the defaults.
type Sources struct {
	// File is the path of a YAML file, "" for none, StandardInput for what Input has.
	File  string
	Input io.Reader
	// Environ holds environment variables in the format of os.Environ.
	Environ []string
	// Flags is the flag set with the flags of addRelayFlags or addTargetFlags; nil for none.
	Flags *pflag.FlagSet
	// Partial accepts a configuration that lacks what is required. Without channels or volumes, it
	// has one with the defaults.
	Partial bool
}

// StandardInput stands for the standard input in place of a file's path.
const StandardInput = "-"

// The prefixes of environment variables. Two underscores separate the prefix and the sections of a
// key: ZC_RELAY__LOG__LEVEL is log.level.
const (
	RelayPrefix  = "ZC_RELAY" + levelSeparator
	TargetPrefix = "ZC_TARGET" + levelSeparator

	levelSeparator = "__"
)

// LoadRelay reads the configuration of zc-relay. An error of type Problems lists all problems.
func LoadRelay(s Sources) (*Relay, error) {
	c := DefaultRelay()
	check := func(report reporter) {
		if s.Partial && len(c.Channels) == 0 {
			c.Channels = []Channel{DefaultChannel()}
		}
		c.check(report)
	}
	l, err := load(s, RelayPrefix, c.describe, check)
	if err != nil {
		return nil, err
	}
	for i := range c.Channels {
		c.Channels[i].origin = l.sourceOf(join("channels", strconv.Itoa(i)))
	}
	return c, nil
}

// LoadTarget reads the configuration of the target, as LoadRelay does for zc-relay.
func LoadTarget(s Sources) (*Target, error) {
	c := DefaultTarget()
	check := func(report reporter) {
		if s.Partial && len(c.Volumes) == 0 {
			c.Volumes = []Volume{defaultVolume()}
		}
		c.check(report)
	}
	if _, err := load(s, TargetPrefix, c.describe, check); err != nil {
		return nil, err
	}
	return c, nil
}

// values are nested maps from keys to text. List elements have their numbers as keys.
type values map[string]any

// at returns what a path leads to: text, values, or nil.
func (v values) at(path string) any {
	var found any = v
	for key := range strings.SplitSeq(path, separator) {
		section, _ := found.(values)
		found = section[key]
	}
	return found
}

// set sets the text at a path.
func (v values) set(path, text string) {
	for {
		key, rest, inside := strings.Cut(path, separator)
		if !inside {
			v[key] = text
			return
		}
		section, _ := v[key].(values)
		if section == nil {
			section = values{}
			v[key] = section
		}
		v, path = section, rest
	}
}

// loader merges the sources.
type loader struct {
	root     *node
	merged   values
	sources  map[string]string // by path
	partial  bool
	problems Problems
}

// load reads a configuration. The loader knows where its values come from.
func load(s Sources, prefix string, describe func(section), check func(reporter)) (*loader, error) {
	l := &loader{root: describeSection("", "", describe), merged: values{},
		sources: make(map[string]string), partial: s.Partial}
	if s.File != "" {
		file, err := readFile(s.File, s.Input, l.root)
		if err != nil {
			return nil, err
		}
		if wrong := file.isOfOther(l.root, prefix); wrong != nil {
			return nil, wrong
		}
		l.merged, l.sources, l.problems = file.values, file.sources, file.problems
	}
	l.addEnvironment(prefix, s.Environ)
	if s.Flags != nil {
		l.addFlags(s.Flags)
	}
	return l, l.finish(check)
}

// finish decodes what was merged, and returns all problems.
func (l *loader) finish(check func(reporter)) error {
	l.decode(l.root, "")
	wrong := l.problems
	check(func(key string, value any, format string, args ...any) {
		if !slices.ContainsFunc(wrong, func(p Problem) bool { return l.distorts(p, key) }) {
			l.report(key, value, format, args...)
		}
	})
	l.problems.sort()
	return l.problems.orNil()
}

func (l *loader) addEnvironment(prefix string, environ []string) {
	l.findMisspelled(prefix, environ)
	for _, variable := range environ {
		name, value, isVariable := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, prefix)
		if !isVariable || !ours {
			continue
		}
		path := strings.Split(strings.ToLower(rest), levelSeparator)
		key := strings.Join(path, separator)
		n, known := l.root.find(path)
		switch {
		case known < len(path):
			l.problem(name, key, "", n.unknownKey(l.root, path[known]))
		case n.value == nil:
			l.problem(name, key, "", "is not a value: its keys are "+n.keys())
		default:
			l.merged.set(key, value)
			l.sources[key] = name
		}
	}
}

// misspelledBy is the most letters by which a variable without two underscores may differ from one
// of the daemon's and still be refused.
const misspelledBy = 2

// findMisspelled reports variables that lack an underscore, such as ZC_RELAY_LOG_LEVEL. Others with
// the beginning of the prefix are none of ours: Kubernetes sets ZC_RELAY_SERVICE_HOST for a service
// that is called zc-relay.
func (l *loader) findMisspelled(prefix string, environ []string) {
	begin := strings.TrimSuffix(prefix, levelSeparator)
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, begin)
		if !ours || strings.HasPrefix(name, prefix) || !strings.HasPrefix(rest, "_") {
			continue
		}
		best, least := "", misspelledBy
		for _, key := range l.root.keyList("") {
			variable := key.Variable(prefix)
			meant := strings.ReplaceAll(strings.TrimPrefix(variable, begin), levelSeparator, "_")
			if d := similar.EditDistance(rest, meant); d <= least {
				best, least = variable, d-1
			}
		}
		if best != "" {
			l.problem(name, "", "", "unknown variable: did you mean "+best+"?")
		}
	}
}

// addFlags adds the flags that were given.
func (l *loader) addFlags(flags *pflag.FlagSet) {
	for _, n := range l.root.children {
		if n.list != nil && n.list.parseFlag != nil && flags.Changed(n.flag) {
			l.addListFlag(n, flags.Lookup(n.flag))
		}
	}
	keys := make(map[string]string)
	l.root.flags("", func(path string, n *node) { keys[n.flag] = path })
	flags.Visit(func(f *pflag.Flag) {
		if path, known := keys[f.Name]; known {
			l.addFlag(f, path)
		}
	})
}

// addListFlag replaces a list by the elements in its flag.
func (l *loader) addListFlag(n *node, f *pflag.Flag) {
	elements := values{}
	l.merged[n.key] = elements
	for i, text := range f.Value.(pflag.SliceValue).GetSlice() {
		index := strconv.Itoa(i)
		element, err := n.list.parseFlag(text)
		if err != nil {
			l.problem("--"+f.Name, "", quote(n.list.shown(text)), status.Text(err))
			continue
		}
		elements[index] = element
		l.sources[join(n.key, index)] = "--" + f.Name
	}
}

// anyElement stands for the number of an element in the path of a flag.
const anyElement = "N"

// addFlag adds a flag for the key at path. A flag for a key of list elements sets the key of the
// only element, or of all elements that the list's flag describes.
func (l *loader) addFlag(f *pflag.Flag, path string) {
	source, value := "--"+f.Name, f.Value.String()
	set := func(path string) {
		l.merged.set(path, value)
		l.sources[path] = source
	}
	listKey, rest, inList := strings.Cut(path, separator+anyElement+separator)
	if !inList {
		set(path)
		return
	}
	list, count := l.root.child(listKey).list, l.elements(listKey)
	switch {
	case list.single && count > 1:
		l.problem(source, "", quote(value),
			fmt.Sprintf("describes the only one of the %s, but there are %d: say it in the file",
				listKey, count))
		return
	case list.single:
		count = 1
	}
	for i := range count {
		set(join(join(listKey, strconv.Itoa(i)), rest))
	}
}

// elements returns the length of a list.
func (l *loader) elements(path string) int {
	list, _ := l.merged.at(path).(values)
	longest := 0
	for key := range list {
		if i, err := strconv.Atoi(key); err == nil {
			longest = max(longest, i+1)
		}
	}
	return longest
}

// decode sets the values below n.
func (l *loader) decode(n *node, path string) {
	switch {
	case n.value != nil:
		l.decodeValue(n, path)
	case n.list != nil:
		count := l.elements(path)
		n.list.resize(count)
		for i := range count {
			at := join(path, strconv.Itoa(i))
			if l.merged.at(at) == nil {
				l.problem(l.anySource(join(path, strconv.Itoa(count-1))), at, "",
					fmt.Sprintf("is missing, but element %d is there: number them from 0", count-1))
			}
			l.decode(n.list.element(i), at)
		}
	default:
		for _, c := range n.children {
			l.decode(c, join(path, c.key))
		}
	}
}

func (l *loader) decodeValue(n *node, path string) {
	text, given := l.merged.at(path).(string)
	if text == "" && l.isReplaced(n, path) {
		return
	}
	if !given {
		if n.required && !l.partial && !l.hasProblem(path) {
			l.problem(l.sourceOf(path), path, "",
				"is required: "+n.doc+flagHint(n)+l.othersSay(path, ""))
		}
		return
	}
	if err := n.value.Set(text); err != nil {
		l.problem(l.sourceOf(path), path, quote(text), status.Text(err))
	}
}

// isReplaced reports whether another key of the section makes this one dispensable.
func (l *loader) isReplaced(n *node, path string) bool {
	instead, _ := l.merged.at(strings.TrimSuffix(path, n.key) + n.instead).(string)
	return n.instead != "" && instead != ""
}

func flagHint(n *node) string {
	if n.flag == "" {
		return ""
	}
	return " (flag --" + n.flag + ")"
}

// hasProblem reports whether a key, or a section around it, has a problem.
func (l *loader) hasProblem(path string) bool {
	for _, p := range l.problems {
		if p.Key == path || strings.HasPrefix(path, p.Key+separator) {
			return true
		}
	}
	return false
}

func (l *loader) problem(source, key, value, text string) {
	l.problems = append(l.problems, Problem{Source: source, Key: key, Value: value, Text: text})
}

// sourceOf returns the source of a value, or of the innermost section around a missing one.
func (l *loader) sourceOf(path string) string {
	for {
		if source, known := l.sources[path]; known {
			return source
		}
		i := strings.LastIndex(path, separator)
		if i < 0 {
			return l.sources[""] // the file
		}
		path = path[:i]
	}
}

// standAlone holds the sections that the checks of other sections do not look at.
var standAlone = []string{"log", "operations", "metrics", "workers", "limits", "shutdown",
	"startup", "state"}

// distorts reports whether a value that could not be decoded may be the cause of a problem with
// values that do not fit together, because the default is in its place.
func (l *loader) distorts(wrong Problem, key string) bool {
	path, at := strings.Split(wrong.Key, separator), strings.Split(key, separator)
	section := l.root.child(path[0])
	switch {
	case section == nil:
		return true
	case slices.Contains(standAlone, path[0]):
		return path[0] == at[0]
	case section.list == nil:
		return true
	case path[0] != at[0] || len(path) < 3 || len(at) < 2: // the list, and not its elements
		return path[0] == at[0]
	}
	return path[1] == at[1] || slices.Contains(section.list.identifiedBy, path[2])
}

// reporter records a problem with values that do not fit together. The key is relative to the
// checked section; a nil value is not shown.
type reporter func(key string, value any, format string, args ...any)

func (l *loader) report(key string, value any, format string, args ...any) {
	shown := ""
	if value != nil {
		shown = quote(fmt.Sprint(value))
	}
	text := fmt.Sprintf(format, args...)
	l.problem(l.sourceOf(key), key, shown, text+l.othersSay(key, text))
}

// othersSay names the variables and flags that may be the cause of a problem that the file gets the
// blame for. They give other keys of the same section: those that text names, or any if the file
// does not give the key itself.
func (l *loader) othersSay(key, text string) string {
	if !isInFile(l.sourceOf(key)) {
		return ""
	}
	_, given := l.sources[key]
	section := key[:strings.LastIndex(key, separator)+1]
	var found []string
	for other, source := range l.sources {
		name, inside := strings.CutPrefix(other, section)
		if inside && section != "" && !isInFile(source) &&
			(!given || slices.Contains(strings.FieldsFunc(text, isNoLetter), name)) {
			found = append(found, source)
		}
	}
	slices.Sort(found)
	switch found = slices.Compact(found); len(found) {
	case 0:
		return ""
	case 1:
		return "; " + found[0] + " is set, too"
	}
	return "; " + strings.Join(found, ", ") + " are set, too"
}

// isNoLetter reports whether a character is in no key.
func isNoLetter(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// isInFile reports whether a source is a line of a file.
func isInFile(source string) bool { return strings.Contains(source, ":") }

// anySource returns a source of what is below a path, the one of the path without any.
func (l *loader) anySource(path string) string {
	for _, key := range slices.Sorted(maps.Keys(l.sources)) {
		if strings.HasPrefix(key, path+separator) {
			return l.sources[key]
		}
	}
	return l.sourceOf(path)
}

// in returns a reporter for an inner section.
func (r reporter) in(section string) reporter {
	return func(key string, value any, format string, args ...any) {
		r(join(section, key), value, format, args...)
	}
}

func (r reporter) element(i int) reporter { return r.in(strconv.Itoa(i)) }
