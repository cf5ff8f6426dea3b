// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// named returns a configuration with channels of these names and volumes.
func named(level string, pairs ...string) *config.Relay {
	c := config.DefaultRelay()
	c.Log.Level = level
	for pair := range slices.Chunk(pairs, 2) {
		channel := config.DefaultChannel()
		channel.Name, channel.Volume = pair[0], pair[1]
		c.Channels = append(c.Channels, channel)
	}
	return c
}

// What a reload could not apply is no change yet, and is one for the next reload.
func TestAReloadReportsTheChangesThatItHasMade(t *testing.T) {
	former := named("info", "a", "disk", "b", "disk")
	wanted := named("debug", "a", "new", "b", "new", "c", "new")
	failed := func(index int) error {
		return &relay.ChannelError{Index: index, Err: status.Errorf(status.BadConfig, "no")}
	}
	for name, c := range map[string]struct {
		err  error
		want *config.Relay
	}{
		"all":             {nil, wanted},
		"but a change":    {errors.Join(failed(1)), named("debug", "a", "new", "b", "disk", "c", "new")},
		"but an addition": {errors.Join(failed(2)), named("debug", "a", "new", "b", "new")},
		"log only": {errors.Join(failed(0), failed(1), failed(2)),
			named("debug", "a", "disk", "b", "disk")},
		"nothing":                 {errors.New("it ends"), nil},
		"nothing, several errors": {errors.Join(failed(0), errors.New("it ends")), nil},
	} {
		now := inEffect(wanted, former, c.err)
		if (now == nil) != (c.want == nil) ||
			now != nil && len(config.RelayChanges(now, c.want)) > 0 {
			t.Errorf("%s: %+v is in effect, want %+v", name, now, c.want)
		}
	}
}

// What needs a restart is compared to what runs, also in a channel that a reload has added.
func TestAChannelThatAReloadAddedWaitsForARestart(t *testing.T) {
	pinned := func(cpus ...int) *config.Relay {
		c := named("info", "a", "disk", "b", "disk")
		c.Channels[1].CPUs = cpus
		return c
	}
	running := named("info", "a", "disk")
	for _, c := range []struct {
		read    *config.Relay
		pending int
	}{{pinned(1), 0}, {pinned(2), 1}, {pinned(2), 1}, {pinned(1), 0},
		{named("info", "a", "disk"), 0}, {pinned(2), 0}} {
		running = running.RunningChannels(c.read)
		pending := 0
		for _, change := range config.RelayChanges(running, c.read) {
			if change.Reload == config.Restart {
				pending++
			}
		}
		if pending != c.pending {
			t.Errorf("with cores %v, %d settings wait for a restart, want %d",
				c.read.Channels[len(c.read.Channels)-1].CPUs, pending, c.pending)
		}
	}
}
