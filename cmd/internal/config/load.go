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
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Sources are the origins of values, besides the defaults.
type Sources struct {
	// File is the path of a YAML file, "" for none.
	File string
	// Environ holds environment variables in the format of os.Environ.
	Environ []string
	// Flags is the flag set with the flags of AddRelayFlags or AddTargetFlags; nil for none.
	Flags *pflag.FlagSet
	// Partial accepts a configuration that lacks what is required. Without channels or volumes, it
	// has one with the defaults.
	Partial bool
}

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
	if err := load(s, RelayPrefix, c.describe, check); err != nil {
		return nil, err
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
	if err := load(s, TargetPrefix, c.describe, check); err != nil {
		return nil, err
	}
	return c, nil
}

// loader merges the sources.
type loader struct {
	root     *node
	merged   *koanf.Koanf
	sources  map[string]string // by path
	partial  bool
	problems Problems
}

func load(s Sources, prefix string, describe func(section), check func(reporter)) error {
	l := &loader{root: describeSection("", "", describe), merged: koanf.New(separator),
		sources: make(map[string]string), partial: s.Partial}
	if err := l.addFile(s.File); err != nil {
		return err
	}
	err := l.addEnvironment(prefix, s.Environ)
	if s.Flags != nil {
		err = errors.Join(err, l.addFlags(s.Flags))
	}
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	l.decode(l.root, "")
	if len(l.problems) == 0 {
		check(l.report)
	}
	l.problems.sort()
	return l.problems.orNil()
}

// provider adapts a layer to koanf.
type provider map[string]any

func (p provider) Read() (map[string]any, error) { return p, nil }
func (p provider) ReadBytes() ([]byte, error)    { return nil, errors.ErrUnsupported }

func (l *loader) addFile(path string) error {
	if path == "" {
		return nil
	}
	file, err := readFile(path, l.root)
	if err != nil {
		return err
	}
	l.sources, l.problems = file.sources, file.problems
	return l.merged.Load(provider(file.values), nil)
}

func (l *loader) addEnvironment(prefix string, environ []string) error {
	l.findMisspelled(prefix, environ)
	return l.merged.Load(env.Provider(separator, env.Opt{
		Prefix: prefix, EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			path := strings.Split(strings.ToLower(strings.TrimPrefix(name, prefix)), levelSeparator)
			key := strings.Join(path, separator)
			n, known := l.root.find(path)
			switch {
			case known < len(path):
				l.problem(name, key, "", n.unknownKey(path[known]))
			case n.value == nil:
				l.problem(name, key, "", "is not a value: its keys are "+n.keys())
			default:
				l.sources[key] = name
				return key, value
			}
			return "", nil
		},
	}), nil)
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
			if d := program.EditDistance(rest, meant); d <= least {
				best, least = variable, d-1
			}
		}
		if best != "" {
			l.problem(name, "", "", "unknown variable: did you mean "+best+"?")
		}
	}
}

// addFlags adds the flags that were given.
func (l *loader) addFlags(flags *pflag.FlagSet) error {
	for _, n := range l.root.children {
		if n.list != nil && n.list.parseFlag != nil && flags.Changed(n.flag) {
			if err := l.addListFlag(n, flags.Lookup(n.flag)); err != nil {
				return err
			}
		}
	}
	keys := make(map[string]string)
	l.root.flags("", func(path string, n *node) { keys[n.flag] = path })
	return l.merged.Load(posflag.ProviderWithFlag(flags, separator, nil,
		func(f *pflag.Flag) (string, any) {
			path, known := keys[f.Name]
			if !known || !f.Changed {
				return "", nil
			}
			return l.placeFlag(f, path)
		}), nil)
}

// addListFlag replaces a list by the elements in its flag.
func (l *loader) addListFlag(n *node, f *pflag.Flag) error {
	l.merged.Delete(n.key)
	elements := make(map[string]any)
	for i, text := range f.Value.(pflag.SliceValue).GetSlice() {
		index := strconv.Itoa(i)
		element, err := n.list.parseFlag(text)
		if err != nil {
			l.problem("--"+f.Name, "", quote(text), status.Text(err))
			continue
		}
		elements[index] = element
		l.sources[join(n.key, index)] = "--" + f.Name
	}
	return l.merged.Load(provider{n.key: elements}, nil)
}

// anyElement stands for the number of an element in the path of a flag.
const anyElement = "N"

// placeFlag returns the key and the value that a flag sets. A flag for a key of list elements sets
// the key of the only element, or of all elements that the list's flag describes.
func (l *loader) placeFlag(f *pflag.Flag, path string) (string, any) {
	source, value := "--"+f.Name, f.Value.String()
	listKey, rest, inList := strings.Cut(path, separator+anyElement+separator)
	if !inList {
		l.sources[path] = source
		return path, value
	}
	list, count := l.root.child(listKey).list, l.elements(listKey)
	if list.single {
		if count > 1 {
			l.problem(source, "", quote(value),
				fmt.Sprintf("describes the only one of the %s, but there are %d: say it in the file",
					listKey, count))
			return "", nil
		}
		path = join(join(listKey, "0"), rest)
		l.sources[path] = source
		return path, value
	}
	for i := range count {
		path := join(join(listKey, strconv.Itoa(i)), rest)
		l.sources[path] = source
		if err := l.merged.Set(path, value); err != nil {
			l.problem(source, path, quote(value), err.Error())
		}
	}
	return "", nil
}

// elements returns the length of a list.
func (l *loader) elements(path string) int {
	values, _ := l.merged.Get(path).(map[string]any)
	longest := 0
	for key := range values {
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
			if !l.merged.Exists(at) {
				l.problem(l.sourceOf(path), at, "",
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
	text, given := l.merged.Get(path).(string)
	if text == "" && l.isReplaced(n, path) {
		return
	}
	if !given {
		if n.required && !l.partial && !l.hasProblem(path) {
			l.problem(l.sourceOf(path), path, "", "is required: "+n.doc+flagHint(n))
		}
		return
	}
	if err := n.value.Set(text); err != nil {
		l.problem(l.sourceOf(path), path, quote(text), status.Text(err))
	}
}

// isReplaced reports whether another key of the section makes this one dispensable.
func (l *loader) isReplaced(n *node, path string) bool {
	return n.instead != "" && l.merged.String(strings.TrimSuffix(path, n.key)+n.instead) != ""
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

// reporter records a problem with values that do not fit together. The key is relative to the
// checked section; a nil value is not shown.
type reporter func(key string, value any, format string, args ...any)

func (l *loader) report(key string, value any, format string, args ...any) {
	shown := ""
	if value != nil {
		shown = quote(fmt.Sprint(value))
	}
	l.problem(l.sourceOf(key), key, shown, fmt.Sprintf(format, args...))
}

// in returns a reporter for an inner section.
func (r reporter) in(section string) reporter {
	return func(key string, value any, format string, args ...any) {
		r(join(section, key), value, format, args...)
	}
}

func (r reporter) element(i int) reporter { return r.in(strconv.Itoa(i)) }
