// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

func TestADirectChannel(t *testing.T) { chaintest.RunChannel(t) }

func TestAStagedChannelPassesTheTestsOfADirectOne(t *testing.T) {
	chaintest.Stage(t)
	chaintest.RunChannel(t)
}

func TestBounceBuffersAreLimitedPerChannel(t *testing.T) {
	chaintest.Stage(t)
	c := chaintest.Start(t, options{Channel: func(config *relay.ChannelConfig) {
		config.Limits.MaxBounceMemory = 3 * 4 * blockSize
	}})
	config := c.QueueConfig(4)
	config.BufferSize = blockSize
	c.Open(config)
	c.Open(config)
	c.Open(config)
	v, err := client.Open(c.Context(), config)
	if err == nil {
		_ = v.Close(c.Context())
		t.Fatal("a fourth session got bounce buffers")
	}
	if !errors.Is(err, status.NoMemory) || !strings.Contains(err.Error(), "limits.bounce_memory") {
		t.Errorf("rejected with %v", err)
	}
}

func TestBounceBuffersOfAllChannelsAreLimited(t *testing.T) {
	chaintest.Stage(t)
	const perSession = 4 * blockSize
	c := chaintest.New(t)
	c.StartTarget(options{}, c.Loopback)
	t.Cleanup(func() { c.StopTarget() })
	c.StartRelayWith(relay.Config{Settings: relay.Settings{MaxBounceMemory: 2 * perSession,
		Channels: []relay.ChannelConfig{chaintest.ChannelTo("one", c.Target.Address()),
			chaintest.ChannelTo("two", c.Target.Address())}}})
	t.Cleanup(func() { c.StopRelay() })
	config := c.QueueConfig(4)
	config.BufferSize = blockSize
	open := func(channel string) (*client.Volume, error) {
		config.ChannelName = channel
		return client.Open(c.Context(), config)
	}
	first, err := open("one")
	if err != nil {
		t.Fatal(err)
	}
	config.ChannelName = "two"
	c.Open(config)
	if _, err := open("one"); !errors.Is(err, status.NoMemory) ||
		!strings.Contains(err.Error(), "limits.bounce_memory of the relay)") {
		t.Errorf("a third session: %v", err)
	}
	if err := first.Close(c.Context()); err != nil {
		t.Fatal(err)
	}
	config.ChannelName = "one"
	c.Open(config) // in place of the first
}

func TestAStagedChannelNeedsADMAProvider(t *testing.T) {
	chaintest.Stage(t)
	c := chaintest.New(t)
	c.StartTarget(options{}, c.Loopback)
	t.Cleanup(func() { c.StopTarget() })
	_, err := relay.New(context.Background(), relay.Config{
		Comch: c.Provider, RDMA: chaintest.NewRDMA(false), CPUs: chaintest.Unpinned(1),
		Settings: relay.Settings{Channels: []relay.ChannelConfig{
			chaintest.ChannelTo(client.DefaultChannelName, c.Target.Address())}},
	})
	if !errors.Is(err, status.NotSupported) {
		t.Errorf("started with %v", err)
	}
}
