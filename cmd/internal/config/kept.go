// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// KeptFile is the name of the file with the channels that were added by command.
const KeptFile = "channels.yaml"

// keptVersion is the version of the file's format.
const keptVersion = 1

// keptHeader is the beginning of the file.
const keptHeader = `# Channels that "zc-relay channel add" has added. The relay owns this file: do
# not edit it, but use "zc-relay channel".
`

// KeptChannels holds the channels that administrators have added by command. They are in a file
// that the relay owns, so that they outlive it. Its methods may be called concurrently, except
// Store and Close.
type KeptChannels struct {
	path string
	lock *os.File

	mu       sync.Mutex
	channels []Channel
}

// ReadKeptChannels returns the channels in a state directory, also of a relay that runs, and the
// path of their file.
func ReadKeptChannels(directory string) (channels []Channel, path string, err error) {
	path = filepath.Join(directory, KeptFile)
	channels, err = readKept(path)
	return channels, path, err
}

// OpenKeptChannels reads the file in a state directory, which it creates in an existing one, and
// keeps other relays from using it.
func OpenKeptChannels(directory string) (*KeptChannels, error) {
	if err := files.CheckParent(directory); err != nil {
		return nil, stateProblem(err)
	}
	if err := os.Mkdir(directory, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, stateProblem(fmt.Errorf("%w: choose another directory, or create it", err))
	}
	k := &KeptChannels{path: filepath.Join(directory, KeptFile)}
	var err error
	if k.lock, err = lockKept(filepath.Join(directory, "channels.lock")); err != nil {
		return nil, stateProblem(err)
	}
	if k.channels, err = readKept(k.path); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func stateProblem(err error) error {
	return fmt.Errorf("state.directory (--state-directory): %w", err)
}

// keptContent is what the file holds.
type keptContent struct {
	version  int
	channels []Channel
}

func (c *keptContent) describe(s section) {
	s.value("version", version(&c.version), "version of the format").require()
	addList(s, "channels", "A Comch service with its targets.", &c.channels, DefaultChannel,
		(*Channel).describe)
	s.node.child("channels").list.identifiedBy = []string{"device", "representor", "name"}
}

// version is the version of the file's format.
func version(p *int) Value {
	return variable{kind: "int", get: func() string { return strconv.Itoa(*p) },
		set: func(s string) error {
			if s != strconv.Itoa(keptVersion) {
				return fmt.Errorf("is not a version of this file: it must be %d", keptVersion)
			}
			*p = keptVersion
			return nil
		}}
}

// readKept reads the file, which need not be there.
func readKept(path string) ([]Channel, error) {
	text, err := files.ReadOwn(path, maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, stateProblem(err)
	}
	if newer := newerVersion(text); newer != "" {
		return nil, status.Errorf(status.BadConfig, "%s has version %s, which a newer release of "+
			"zc-relay has written, and this one reads version %d: install that release again; or "+
			"move the file away (mv %s %s.newer), start the relay, and add its channels again by "+
			"\"zc-relay channel add\"", path, newer, keptVersion, path, path)
	}
	var kept keptContent
	l := &loader{root: describeSection("", "", kept.describe)}
	file, err := parseYAML(path, text, l.root)
	if err == nil {
		l.merged, l.sources, l.problems = file.values, file.sources, file.problems
		l.sources[""] = path
		err = l.finish(func(report reporter) { checkOnce(report, kept.channels) })
	}
	if err != nil {
		return nil, status.Errorf(status.BadConfig, "%w\nthe relay has written %s, and something "+
			"else has changed it: put it back from a backup, or move it away (mv %s %s.bad), "+
			"start the relay, and add its channels again by \"zc-relay channel add\"", err, path,
			path, path)
	}
	return kept.channels, nil
}

// newerVersion returns the version of a file that a newer release has written, "" of any other.
// Whatever else such a file has may be unknown here.
func newerVersion(text []byte) string {
	var file struct {
		Version yaml.Node `yaml:"version"`
	}
	if yaml.Unmarshal(text, &file) != nil {
		return ""
	}
	n, err := strconv.Atoi(file.Version.Value)
	if err != nil || n <= keptVersion {
		return ""
	}
	return file.Version.Value
}

// checkOnce reports channels that are there twice.
func checkOnce(report reporter, channels []Channel) {
	for i := range channels {
		first := slices.IndexFunc(channels,
			func(c Channel) bool { return c.id() == channels[i].id() })
		if first < i {
			report.in("channels").element(i)("name", channels[i].Name,
				"channel %d has the same name, device and representor", first)
		}
	}
}

// Path returns the path of the file.
func (k *KeptChannels) Path() string { return k.path }

// Channels returns the channels, in the order in which they were added.
func (k *KeptChannels) Channels() []Channel {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.channels)
}

// Store replaces the channels. When it returns nil, that is durable; otherwise the channels are the
// former ones.
func (k *KeptChannels) Store(channels []Channel) error {
	former := k.Channels()
	text := keptText(channels)
	if len(text) > maxFileSize {
		return status.Errorf(status.TooBig, "the change cannot be kept, and was not made: %s would "+
			"have %d bytes, and could not be read again beyond %d: move channels into the "+
			"configuration", k.path, len(text), maxFileSize)
	}
	if err := k.write(text); err != nil {
		// The file may already have the new content. The code tells that nothing is wrong with what
		// was asked for, whatever the system says of the file.
		return status.Errorf(status.IOFailed, "the change cannot be kept, and was not made: %w",
			errors.Join(err, k.restore(former)))
	}
	k.mu.Lock()
	k.channels = slices.Clone(channels)
	k.mu.Unlock()
	return nil
}

// restore makes the file agree with the former channels if it does not.
func (k *KeptChannels) restore(former []Channel) error {
	there, err := os.ReadFile(k.path)
	text := keptText(former)
	if errors.Is(err, fs.ErrNotExist) && len(former) == 0 || err == nil && string(there) == text {
		return nil
	}
	if _, gone := os.Stat(filepath.Dir(k.path)); errors.Is(gone, fs.ErrNotExist) {
		return nil // as the first error says
	}
	if err := k.write(text); err != nil {
		return fmt.Errorf("%s may differ from what the relay serves until the next change, or "+
			"until a restart serves what it says: %w", k.path, err)
	}
	return nil
}

func (k *KeptChannels) write(text string) error {
	err := files.Replace(k.path, []byte(text), 0o600)
	directory := filepath.Dir(k.path)
	if _, gone := os.Stat(directory); errors.Is(gone, fs.ErrNotExist) {
		return fmt.Errorf("the state directory %s has been moved or removed since the relay has "+
			"started, and the relay goes on with the channels that it serves: put the directory "+
			"back, or make an empty one (install -d -m 700 -o %d %[1]s), and repeat the command, "+
			"which writes all channels again: %[3]w", directory, os.Geteuid(), gone)
	}
	return err
}

// Close lets other relays use the directory.
func (k *KeptChannels) Close() error { return k.lock.Close() }

// keptText returns the content of a file with channels.
func keptText(channels []Channel) string {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range channels {
		defaults := DefaultChannel()
		list.Content = append(list.Content, describeSection("", "", channels[i].describe).
			differences(describeSection("", "", defaults.describe)))
	}
	document := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
		{Kind: yaml.ScalarNode, Value: "version"},
		{Kind: yaml.ScalarNode, Value: strconv.Itoa(keptVersion)},
		{Kind: yaml.ScalarNode, Value: "channels"}, list,
	}}
	var text strings.Builder
	text.WriteString(keptHeader)
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := errors.Join(encoder.Encode(document), encoder.Close())
	if err != nil { // of values that are all text
		panic(err)
	}
	return text.String()
}

// identity holds the keys of a channel that are always written.
var identity = []string{"name", "device", "representor"}

// differences returns a section without what its defaults say, except for what identifies it.
func (n *node) differences(defaults *node) *yaml.Node {
	y := &yaml.Node{Kind: yaml.MappingNode}
	for i, c := range n.children {
		value := c.yaml()
		if c.value == nil {
			value = c.differences(defaults.children[i])
			if len(value.Content) == 0 {
				continue
			}
		} else if c.value.String() == defaults.children[i].value.String() &&
			!slices.Contains(identity, c.key) {
			continue
		}
		y.Content = append(y.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: c.key}, value)
	}
	return y
}

// WithKept returns the configuration together with channels that were added by command, behind its
// own. It fails if the configuration has one of them, too, or if they do not fit it.
func (c *Relay) WithKept(kept []Channel, path string) (*Relay, error) {
	var problems Problems
	for i := range kept {
		if origin, twice := c.Defines(&kept[i]); twice {
			problems = append(problems, Problem{Source: origin, Text: fmt.Sprintf(
				"channel %s is defined here and kept in %s, where \"zc-relay channel add\" has "+
					"put it: delete it here, or run \"zc-relay channel remove %s\" before you "+
					"define it here", kept[i].FullName(), path, kept[i].FullName())})
		}
	}
	if err := problems.orNil(); err != nil {
		return nil, err
	}
	all := *c
	all.Channels = slices.Concat(c.Channels, kept)
	own := len(c.Channels)
	all.check(func(key string, value any, format string, args ...any) {
		place, rest := channelKey(key)
		if place < own {
			return // was reported when the configuration was read
		}
		shown := ""
		if value != nil {
			shown = quote(fmt.Sprint(value))
		}
		problems = append(problems, Problem{Source: path,
			Key:   join(join("channels", strconv.Itoa(place-own)), rest),
			Value: shown, Text: fmt.Sprintf(format, args...)})
	})
	return &all, problems.orNil()
}

// channelKey returns the place of the channel in a key, -1 for another key, and the rest.
func channelKey(key string) (place int, rest string) {
	inside, isChannel := strings.CutPrefix(key, "channels"+separator)
	index, rest, _ := strings.Cut(inside, separator)
	place, err := strconv.Atoi(index)
	if !isChannel || err != nil {
		return -1, ""
	}
	return place, rest
}

// Defines reports whether the configuration has a channel of the same identity, and where.
func (c *Relay) Defines(other *Channel) (origin string, isDefined bool) {
	i := slices.IndexFunc(c.Channels, func(own Channel) bool { return own.id() == other.id() })
	if i < 0 {
		return "", false
	}
	return c.Channels[i].Origin(), true
}

// Origin says where the channel is defined.
func (c *Channel) Origin() string { return cmp.Or(c.origin, "the flags of the relay") }

// FullName returns device, representor, and name, which identify the channel.
func (c *Channel) FullName() string {
	id := c.id()
	return id.device + "/" + id.representor + "/" + id.name
}

// IsCalled reports whether text is the channel's full name, with addresses in any notation.
func (c *Channel) IsCalled(text string) bool {
	parts := strings.SplitN(text, "/", 3)
	return len(parts) == 3 && c.id() == channelID{pci.Normalize(parts[0]),
		pci.Normalize(parts[1]), parts[2]}
}
