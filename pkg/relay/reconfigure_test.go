// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// expectOnly fails unless a reload has failed for one channel alone, with a code.
func expectOnly(t *testing.T, err error, index int, code status.Code) {
	t.Helper()
	failed, is := errors.AsType[*relay.ChannelError](err)
	if !is || failed.Index != index || !errors.Is(failed, code) {
		t.Errorf("Reconfigure returned %v, want %v for channel %d", err, code, index)
	}
}

func TestAChannelThatCannotWorkPreventsNoOtherChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{}, "a", "b")
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		changed := settingsOf("a", "b", "c")
		for i := range changed.Channels {
			changed.Channels[i].Volume = "another"
		}
		changed.Channels[1].Isolation = "none"
		expectOnly(t, y.Reconfigure(t.Context(), changed), 1, status.InvalidValue)
		y.expect(3, relay.ChannelListening, relay.ChannelListening, relay.ChannelListening)
		for i, want := range []string{"another", "volume", "another"} {
			if got := y.Channels()[i].Volume; got != want {
				t.Errorf("channel %d has the volume %q, want %q", i, got, want)
			}
		}
	})
}

func TestAReloadChecksDevicesAsAStartDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{}, "a")
		y.expect(1, relay.ChannelListening)
		moved := settingsOf("a")
		moved.Channels[0].Volume = "another"
		moved.Channels[0].RDMAAddress = netip.MustParseAddr("127.0.0.2")
		y.devices.set(status.Errorf(status.BadConfig, "the devices do not fit"))
		expectOnly(t, y.Reconfigure(t.Context(), moved), 0, status.BadConfig)
		y.expect(1, relay.ChannelListening)
		if got := y.Channels()[0].Volume; got != "volume" {
			t.Errorf("a channel that keeps its settings has the volume %q", got)
		}
		y.devices.set(status.Errorf(status.NotFound, "there is no such device yet"))
		if err := y.Reconfigure(t.Context(), moved); err != nil {
			t.Errorf("for a device that is missing, Reconfigure returned %v", err)
		}
		y.expect(0, relay.ChannelWaiting)
		if got := y.Channels()[0].Volume; got != "another" {
			t.Errorf("a channel that waits for its device has the volume %q", got)
		}
		y.devices.set(nil)
		time.Sleep(10 * time.Second)
		y.expect(1, relay.ChannelListening)
	})
}

func TestAReloadThatChangesNoDeviceDoesNotCloseTheChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{}, "a")
		y.expect(1, relay.ChannelListening)
		y.devices.set(errNoRepresentor)
		same := settingsOf("a")
		same.Channels[0].Volume = "another"
		if err := y.Reconfigure(t.Context(), same); err != nil {
			t.Error(err)
		}
		y.expect(1, relay.ChannelListening)
	})
}

func TestALinkFollowsTheRDMAAddressOfItsChannel(t *testing.T) {
	f := startFakeTarget(t, func(int) (error, bool) { return nil, false })
	c := startRelayTo(t, f, relay.ChannelConfig{Reconnect: quickly})
	c.awaitReady()
	config := c.channel
	config.RDMAAddress = netip.MustParseAddr("192.0.2.77") // which no machine has
	if err := c.relay.Reconfigure(t.Context(),
		relay.Settings{Channels: []relay.ChannelConfig{config}}); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "the relay knows that it cannot serve", func() bool {
		s := c.status()
		return s.Link.State == relay.LinkWaiting && s.State == relay.ChannelWaiting &&
			strings.Contains(s.LastError.Error(), "192.0.2.77")
	})
	if err := c.relay.Reconfigure(t.Context(),
		relay.Settings{Channels: []relay.ChannelConfig{c.channel}}); err != nil {
		t.Error(err)
	}
	c.awaitReady()
	testkit.Eventually(t, "clients can connect again",
		func() bool { return c.status().State == relay.ChannelListening })
}

// turncoat is a Comch provider whose device does not let the CPU address clients' memory any more.
type turncoat struct {
	comch.Provider
	opaque atomic.Bool
}

func (p *turncoat) Capabilities(device string) (comch.Capabilities, error) {
	c, err := p.Provider.Capabilities(device)
	c.OpaqueImports = p.opaque.Load()
	return c, err
}

// A client that is told BAD_CONFIG gives up for good, although an operator can mend the relay.
func TestClientsAreToldToTryAgainWhenTheRelaysDevicesDoNotFit(t *testing.T) {
	provider := &turncoat{Provider: emulated.New(emulated.Options{Directory: t.TempDir()})}
	f := startFakeTarget(t, func(int) (error, bool) { return nil, false })
	c := &chain{t: t, options: chainOptions{comch: provider, hostComch: provider.Provider,
		rdma: adapter{Provider: iwarp.New(iwarp.Options{}), opaque: true, name: other}}}
	c.startRelay(relay.ChannelConfig{Targets: addressesOf([]*fakeTarget{f}), Reconnect: quickly,
		ImportDevice: relay.ImportComch})
	c.awaitReady()
	provider.opaque.Store(true)
	c.connect()
	if err := c.call(&controlmsg.OpenVolume{}); !errors.Is(err, status.NotConnected) ||
		!strings.Contains(err.Error(), "cannot reach memory of clients") {
		t.Errorf("the client is told %v", err)
	}
}
