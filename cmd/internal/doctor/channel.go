// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// setting names a value of the configuration as users change it: by its key in the file or, without
// a file, by its flag.
func (m *machine) setting(key, flag string) string {
	if m.FromFile {
		return key
	}
	return flag
}

// channelSetting is setting for a key of a channel. One that was added by command has flags alone.
func (m *machine) channelSetting(channel int, key, flag string) string {
	if m.Kept != "" && channel >= m.Configured {
		return fmt.Sprintf("%s of channel %s (added by \"zc-relay channel\": remove it, and add it "+
			"again)", flag, m.Channels[channel])
	}
	return m.setting(fmt.Sprintf("channels[%d].%s", channel, key), flag)
}

// maxNamed bounds how many channels or volumes a finding names.
const maxNamed = 3

// inChannels returns the start of a finding about channels: their names, or "" if there is only one
// in all.
func (m *machine) inChannels(channels ...int) string {
	if len(m.Channels) < 2 || len(channels) == 0 {
		return ""
	}
	channels = slices.Compact(channels)
	names := make([]string, 0, len(channels))
	for _, channel := range channels {
		names = append(names, m.Channels[channel])
	}
	return named("channel", names) + ": "
}

// named returns a noun, in the plural if there are several names, and the first of them.
func named(noun string, names []string) string {
	if len(names) > 1 {
		noun += "s"
	}
	more := ""
	if n := len(names) - maxNamed; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return noun + " " + strings.Join(names[:min(len(names), maxNamed)], ", ") + more
}

// grouped groups channels that share what a check looks at, in the order of the first of each
// group.
type grouped[T comparable] struct {
	order    []T
	channels map[T][]int
}

// all returns the groups with their channels.
func (g *grouped[T]) all() iter.Seq2[T, []int] {
	return func(yield func(T, []int) bool) {
		for _, what := range g.order {
			if !yield(what, g.channels[what]) {
				return
			}
		}
	}
}

func (g *grouped[T]) add(what T, channel int) {
	if g.channels == nil {
		g.channels = make(map[T][]int)
	}
	if _, known := g.channels[what]; !known {
		g.order = append(g.order, what)
	}
	g.channels[what] = append(g.channels[what], channel)
}
