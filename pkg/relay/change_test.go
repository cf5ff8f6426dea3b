// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestOneChannelIsAddedChangedAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{"late": errNoRepresentor}, "a")
		y.expect(1, relay.ChannelListening)
		configs := settingsOf("b", "late", "wrong").Channels
		configs[2].Isolation = "none"
		for i, code := range []status.Code{status.Success, status.Success, status.InvalidValue} {
			err := y.AddChannel(t.Context(), configs[i])
			if (err == nil) != (code == status.Success) || err != nil && !errors.Is(err, code) {
				t.Errorf("adding %v: %v, want %v", configs[i].ChannelID, err, code)
			}
		}
		y.expect(2, relay.ChannelListening, relay.ChannelListening, relay.ChannelWaiting)
		if err := y.AddChannel(t.Context(), configs[0]); !errors.Is(err, status.AlreadyExist) {
			t.Errorf("adding it again: %v", err)
		}
		y.devices.set(status.Errorf(status.BadConfig, "the devices do not fit"))
		configs[0].RDMAAddress = netip.MustParseAddr("127.0.0.2")
		if err := y.ChangeChannel(t.Context(), configs[0]); !errors.Is(err, status.BadConfig) {
			t.Errorf("a change to a device that does not fit: %v", err)
		}
		configs[0].RDMAAddress, configs[0].Volume = netip.MustParseAddr("127.0.0.1"), "another"
		if err := y.ChangeChannel(t.Context(), configs[0]); err != nil {
			t.Error(err)
		}
		if got := y.Channels()[1].Volume; got != "another" {
			t.Errorf("the volume is %q", got)
		}
		for _, c := range configs[:2] {
			if err := y.RemoveChannel(t.Context(), c.ChannelID); err != nil {
				t.Error(err)
			}
			if err := y.EndRemoved(t.Context(), c.ChannelID, retry.Bound{}); err != nil {
				t.Error(err)
			}
		}
		y.expect(1, relay.ChannelListening)
		if err := y.RemoveChannel(t.Context(), configs[0].ChannelID); !errors.Is(err,
			status.NotFound) {
			t.Errorf("removing it again: %v", err)
		}
		if err := y.ChangeChannel(t.Context(), configs[0]); !errors.Is(err, status.NotFound) {
			t.Errorf("changing it then: %v", err)
		}
	})
}

func TestSessionsLeaveTheTargetThatAChannelIsMovedFrom(t *testing.T) {
	_, all := startOwners(t, 1)
	_, others := startOwners(t, 1)
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), Reconnect: quickly})
	c.awaitTarget(all[0])
	c.connect()
	c.openVolume()
	id := c.channel.ChannelID
	if c.relay.LeaveFormerTargets(t.Context(), id, retry.Bound{}); c.relay.Sessions() != 1 {
		t.Error("a session at the channel's target has ended")
	}
	if err := c.relay.ChangeChannel(t.Context(), c.configTo(addressesOf(others))); err != nil {
		t.Fatal(err)
	}
	c.relay.LeaveFormerTargets(t.Context(), id, retry.Bound{})
	testkit.Eventually(t, "the session has ended", func() bool { return c.relay.Sessions() == 0 })
	<-c.requester.Done()
	if err := c.requester.Err(); !errors.Is(err, status.NotConnected) {
		t.Errorf("the client is told %v", err)
	}
	c.awaitTarget(others[0])
	c.connect()
	c.openVolume()
}

func TestTheSessionsOfARemovedChannelEnd(t *testing.T) {
	_, all := startOwners(t, 1)
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), Reconnect: quickly})
	c.awaitTarget(all[0])
	c.connect()
	c.openVolume()
	id := c.channel.ChannelID
	if err := c.relay.RemoveChannel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if n := c.relay.Sessions(); n != 1 {
		t.Errorf("%d sessions are open", n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = c.relay.EndRemoved(ended, id, retry.Within(0)) // may give up before they have ended
	if err := c.relay.EndRemoved(t.Context(), id, retry.Within(0)); err != nil {
		t.Error(err)
	}
	<-c.requester.Done()
	if err := c.requester.Err(); !errors.Is(err, status.Shutdown) {
		t.Errorf("the client is told %v", err)
	}
	if n := len(c.relay.Channels()); n != 0 {
		t.Errorf("%d channels are left", n)
	}
}
