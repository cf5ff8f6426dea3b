// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// directory looks up the targets of a channel, or fails with err.
type directory struct {
	mu      sync.Mutex
	err     error
	targets []netip.AddrPort
}

func (d *directory) set(err error, targets ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.targets = err, nil
	for _, target := range targets {
		d.targets = append(d.targets, netip.MustParseAddrPort(target))
	}
}

func (d *directory) lookUp(_ context.Context, c *relay.ChannelConfig) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.Targets = d.targets
	return d.err
}

// named returns settings whose last channel has its targets from a directory.
func (d *directory) named(representors ...string) relay.Settings {
	s := settingsOf(representors...)
	last := &s.Channels[len(s.Channels)-1]
	last.Targets, last.LookUp = nil, d.lookUp
	return s
}

// targetsOf returns the addresses of a channel's targets.
func (y *yard) targetsOf(channel int) (all []string) {
	for _, target := range y.Channels()[channel].Targets {
		all = append(all, target.Address.String())
	}
	return all
}

var errNoName = errors.New("lookup storage.example.com: no such host")

func TestAChannelWaitsUntilItsTargetsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &directory{err: errNoName}
		y := startYard(t, map[string]error{}, "there")
		if err := y.Reconfigure(t.Context(), d.named("there", "late")); err != nil {
			t.Errorf("Reconfigure returned %v", err)
		}
		y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
		if reason := y.Channels()[1].LastError; !errors.Is(reason, errNoName) {
			t.Errorf("the channel waits because of %v", reason)
		}
		// An answer that cannot be right today may be so tomorrow.
		d.set(nil)
		time.Sleep(time.Minute)
		y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
		d.set(nil, "127.0.0.1:9", "127.0.0.1:10")
		time.Sleep(8 * time.Second)
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		if got := y.targetsOf(1); !slices.Equal(got, []string{"127.0.0.1:9", "127.0.0.1:10"}) {
			t.Errorf("the targets are %v", got)
		}
	})
}

func TestARelayStartsBeforeItsTargetsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &directory{err: status.Errorf(status.InvalidValue, "no such host")}
		y := &yard{t: t, dpu: &dpu{}, devices: &lateDevices{Provider: iwarp.New(iwarp.Options{})}}
		y.startWith(d.named("late"))
		y.expect(0, relay.ChannelWaiting)
		d.set(nil, "127.0.0.1:9")
		time.Sleep(time.Second)
		y.expect(1, relay.ChannelListening)
	})
}

func TestAReloadWithoutNamesKeepsWhatWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &directory{}
		d.set(nil, "127.0.0.1:9")
		y := startYard(t, map[string]error{}, "there")
		if err := y.Reconfigure(t.Context(), d.named("there", "late")); err != nil {
			t.Errorf("Reconfigure returned %v", err)
		}
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		d.set(errNoName)
		changed := d.named("there", "late")
		for i := range changed.Channels {
			changed.Channels[i].Volume = "another"
		}
		err := y.Reconfigure(t.Context(), changed)
		failed, is := errors.AsType[*relay.ChannelError](err)
		if !is || failed.Index != 1 || !errors.Is(err, errNoName) {
			t.Errorf("Reconfigure returned %v", err)
		}
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		if c := y.Channels(); c[0].Volume != "another" || c[1].Volume != "volume" {
			t.Errorf("the volumes are %q and %q", c[0].Volume, c[1].Volume)
		}
		d.set(nil, "127.0.0.1:10")
		if err := y.Reconfigure(t.Context(), changed); err != nil {
			t.Errorf("Reconfigure returned %v", err)
		}
		if got := y.targetsOf(1); !slices.Equal(got, []string{"127.0.0.1:10"}) ||
			y.Channels()[1].Volume != "another" {
			t.Errorf("the targets are %v", got)
		}
	})
}

func TestACoreThatIsNotThereKeepsOnlyItsChannelDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{}, "there")
		settings := settingsOf("there", "pinned")
		settings.Channels[1].CPUs = []int{1023}
		expectOnly(t, y.Reconfigure(t.Context(), settings), 1, status.InvalidValue)
		y.expect(1, relay.ChannelListening)
		y = &yard{t: t, dpu: &dpu{}, devices: &lateDevices{Provider: iwarp.New(iwarp.Options{})}}
		y.startWith(settings)
		y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
	})
}
