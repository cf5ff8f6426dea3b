// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
)

// Change is a difference between two configurations.
type Change struct {
	// Key is the path of the key. The identity of a list element replaces its number, for instance
	// "channels[03:00.0/b1:00.0/storage].volume".
	Key string
	// Former and Now are the values. Now is "added" or "removed" for a list element.
	Former, Now string
	// Element means that a list element was added or removed.
	Element bool
	// Reload determines when the change takes effect.
	Reload Reload
}

// String returns key and values.
func (c Change) String() string {
	if c.Element {
		return c.Key + " " + c.Now
	}
	return fmt.Sprintf("%s: %q is now %q", c.Key, c.Former, c.Now)
}

const (
	added   = "added"
	removed = "removed"
)

// RelayChanges compares two configurations of zc-relay.
func RelayChanges(former, now *Relay) []Change {
	return changes(describeSection("", "", former.describe), describeSection("", "", now.describe))
}

// TargetChanges compares two configurations of the target.
func TargetChanges(former, now *Target) []Change {
	return changes(describeSection("", "", former.describe), describeSection("", "", now.describe))
}

// KeepChannels returns the configuration in effect after a reload to c that has failed for some
// channels, given by their places: these have their former configuration, if they had one.
func (c *Relay) KeepChannels(failed []int, former *Relay) *Relay {
	now := *c
	now.Channels = keep(c.Channels, former.Channels,
		func(i int) bool { return slices.Contains(failed, i) },
		func(a, b *Channel) bool { return a.id() == b.id() })
	return &now
}

// KeepVolumes does the same for volumes of the target, given by their names.
func (c *Target) KeepVolumes(failed []string, former *Target) *Target {
	now := *c
	now.Volumes = keep(c.Volumes, former.Volumes,
		func(i int) bool { return slices.Contains(failed, c.Volumes[i].Name) },
		func(a, b *Volume) bool { return a.Name == b.Name })
	return &now
}

// RunningChannels returns the configuration that a process has when now is in effect, as far as
// only a restart changes it: c, in which later channels are as they were when they were added.
func (c *Relay) RunningChannels(now *Relay) *Relay {
	running := *c
	running.Channels = slices.Clone(now.Channels)
	for i := range running.Channels {
		channel := &running.Channels[i]
		former := slices.IndexFunc(c.Channels,
			func(f Channel) bool { return f.id() == channel.id() })
		if former >= 0 {
			*channel = c.Channels[former]
		}
	}
	return &running
}

// keep returns now with the former in place of elements that have failed.
func keep[T any](now, former []T, hasFailed func(i int) bool, isSame func(a, b *T) bool) []T {
	var all []T
	for i := range now {
		if !hasFailed(i) {
			all = append(all, now[i])
			continue
		}
		place := slices.IndexFunc(former, func(f T) bool { return isSame(&now[i], &f) })
		if place >= 0 {
			all = append(all, former[place])
		}
	}
	return all
}

// state is a configuration as a flat map.
type state map[string]stateEntry

type stateEntry struct {
	text    string
	reload  Reload
	element bool
}

func (s state) add(n *node, path string) {
	if n.value != nil {
		s[path] = stateEntry{text: n.value.String(), reload: n.reload}
	}
	for _, c := range n.children {
		s.add(c, join(path, c.key))
	}
	if n.list == nil {
		return
	}
	for i := range n.list.length() {
		element := n.list.element(i)
		at := path + "[" + n.list.identity(element) + "]"
		s[at] = stateEntry{reload: n.reload, element: true}
		s.add(element, at)
	}
}

// identity names an element by its identifying keys.
func (l *list) identity(element *node) string {
	texts := make([]string, len(l.identifiedBy))
	for i, key := range l.identifiedBy {
		texts[i] = element.child(key).value.String()
	}
	return strings.Join(texts, "/")
}

func changes(former, now *node) []Change {
	before, after := state{}, state{}
	before.add(former, "")
	after.add(now, "")
	var all []Change
	for key, b := range before {
		a, there := after[key]
		switch {
		case there && a.text != b.text:
			all = append(all, Change{Key: key, Former: b.text, Now: a.text, Reload: b.reload})
		case !there && b.element:
			all = append(all, Change{Key: key, Now: removed, Element: true, Reload: b.reload})
		}
	}
	for key, a := range after {
		if _, there := before[key]; !there && a.element {
			all = append(all, Change{Key: key, Now: added, Element: true, Reload: a.reload})
		}
	}
	slices.SortFunc(all, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	return all
}
