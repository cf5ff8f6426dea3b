package chain

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// stage makes the channels of a test move data through bounce buffers. The test cannot be parallel,
// but its own tests can.
func stage(t *testing.T) {
	isolation = relay.Staged
	t.Cleanup(func() { isolation = relay.Direct })
}

func TestAStagedChannelPassesTheTestsOfADirectOne(t *testing.T) {
	stage(t)
	runTestsOfAChannel(t)
}

// runTestsOfAChannel runs the tests whose outcome must not depend on providers or isolation.
func runTestsOfAChannel(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"WhatIsWrittenIsRead", TestWhatIsWrittenIsRead},
		{"ReadsStopAtTheEndOfTheVolume", TestReadsStopAtTheEndOfTheVolumeAndWritesFailThere},
		{"ZeroesAndTrim", TestZeroesAndTrimWorkOnWholeBlocks},
		{"BadRequestsFail", TestBadRequestsFailAndTheSessionContinues},
		{"NoIOAllocates", TestNoIOAllocatesAnywhereInTheChain},
		{"ALostTarget", TestALostTargetFailsEverythingInFlightOnceAndServesAgain},
		{"ALostRelay", TestALostRelayFailsEverythingInFlightOnce},
		{"AnIOThatTimesOut", TestAnIOThatTimesOutFailsAndItsBufferIsLeftAlone},
		{"AVolumeError", TestAVolumeErrorFailsOnlyThatIO},
		{"ASessionCanBeDestroyed", TestASessionCanBeDestroyedAtEveryStep},
		{"RequestsInFlightAtTheLoss", TestRequestsInFlightAtTheLossCompleteAfterIt},
		{"LostUnflushedWrites", TestLostUnflushedWritesFailTheNextFlushOfEachQueue},
		{"ConcurrentClients", TestConcurrentClientsDoNotInterfere},
		{"ConsecutiveSessions", TestConsecutiveSessionsLeakNothing},
		{"AClientThatVanishes", TestAClientThatVanishesIsReleasedAndOthersContinue},
	} {
		t.Run(test.name, test.run)
	}
}

func TestBounceBuffersAreLimitedPerChannel(t *testing.T) {
	stage(t)
	c := start(t, options{channel: func(config *relay.ChannelConfig) {
		config.Limits.MaxBounceMemory = 3 * 4 * blockSize
	}})
	config := c.queueConfig(4)
	config.BufferSize = blockSize
	c.open(config)
	c.open(config)
	c.open(config)
	v, err := client.Open(c.context(), config)
	if err == nil {
		_ = v.Close(c.context())
		t.Fatal("a fourth session got bounce buffers")
	}
	if !errors.Is(err, status.NoMemory) || !strings.Contains(err.Error(), "limits.bounce_memory") {
		t.Errorf("rejected with %v", err)
	}
}

func TestBounceBuffersOfAllChannelsAreLimited(t *testing.T) {
	stage(t)
	const perSession = 4 * blockSize
	c := newChain(t)
	c.startTarget(options{}, c.loopback)
	t.Cleanup(func() { c.stopTarget() })
	c.startRelayWith(relay.Config{Settings: relay.Settings{MaxBounceMemory: 2 * perSession,
		Channels: []relay.ChannelConfig{channelTo("one", c.target.Address()),
			channelTo("two", c.target.Address())}}})
	t.Cleanup(func() { c.stopRelay() })
	config := c.queueConfig(4)
	config.BufferSize = blockSize
	open := func(channel string) (*client.Volume, error) {
		config.ChannelName = channel
		return client.Open(c.context(), config)
	}
	first, err := open("one")
	if err != nil {
		t.Fatal(err)
	}
	config.ChannelName = "two"
	c.open(config)
	if _, err := open("one"); !errors.Is(err, status.NoMemory) ||
		!strings.Contains(err.Error(), "limits.bounce_memory of the relay)") {
		t.Errorf("a third session: %v", err)
	}
	if err := first.Close(c.context()); err != nil {
		t.Fatal(err)
	}
	config.ChannelName = "one"
	c.open(config) // in place of the first
}

func TestAStagedChannelNeedsADMAProvider(t *testing.T) {
	stage(t)
	c := newChain(t)
	c.startTarget(options{}, c.loopback)
	t.Cleanup(func() { c.stopTarget() })
	_, err := relay.New(context.Background(), relay.Config{
		Comch: c.provider, RDMA: newRDMA(false), CPUs: unpinned(1),
		Settings: relay.Settings{Channels: []relay.ChannelConfig{
			channelTo(client.DefaultChannelName, c.target.Address())}},
	})
	if !errors.Is(err, status.NotSupported) {
		t.Errorf("started with %v", err)
	}
}
