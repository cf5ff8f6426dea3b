package chain

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
)

func TestALostTargetFailsEverythingInFlightOnceAndServesAgain(t *testing.T) {
	parallel(t)
	const depth = 16
	c := start(t, options{
		gated: true,
		target: func(config *target.Config) {
			config.DrainTimeout = retry.Within(50 * time.Millisecond)
		},
		channel: func(config *relay.ChannelConfig) {
			config.SessionWait = retry.Within(50 * time.Millisecond)
		},
	})
	gate := c.gate
	gate.closed.Store(true)
	c.awaitState(client.DefaultChannelName, relay.LinkReady) // a session does not wait for it
	v, err := client.Open(c.context(), c.queueConfig(depth))
	if err != nil {
		t.Fatal(err)
	}
	submitReads(t, v.Queue(0), depth)
	c.awaitInFlight(1, v.Queue(0)) // the others may still be on their way
	address := c.target.Address()
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stopTarget() }()
	codes := collect(t, v.Queue(0), depth)
	gate.closed.Store(false)
	<-stopped
	for tag := range uint64(depth) {
		if got := codes[tag]; len(got) != 1 || got[0] == status.Success {
			t.Errorf("request %d ended with %v, want one failure", tag, got)
		}
	}
	if err := v.Close(c.context()); err == nil {
		t.Error("closing a volume whose target is gone succeeded")
	} else if v.Err() == nil {
		t.Error("the volume does not say why it ended")
	}
	_, err = client.Open(c.context(), c.queueConfig(depth))
	if !errors.Is(err, status.NotConnected) {
		t.Errorf("open while the target is down: %v", err)
	}
	c.startTarget(options{}, address)
	c.awaitState(client.DefaultChannelName, relay.LinkReady)
	again := c.open(c.config())
	if _, err := again.WriteAt([]byte("back"), 0); err != nil {
		t.Errorf("write after the target's return: %v", err)
	}
}

func TestALostRelayFailsEverythingInFlightOnce(t *testing.T) {
	parallel(t)
	const depth = 8
	c := start(t, options{gated: true,
		relay: func(config *relay.Config) {
			config.DrainTimeout = retry.Within(50 * time.Millisecond)
		}})
	gate := c.gate
	gate.closed.Store(true)
	v := c.open(c.queueConfig(depth))
	submitReads(t, v.Queue(0), depth)
	c.stopRelay()
	expectOnce(t, collect(t, v.Queue(0), depth), depth, status.Shutdown)
	c.awaitEnd(v.Done())
	if err := v.Err(); !errors.Is(err, status.Shutdown) {
		t.Errorf("the volume ended with %v", err)
	}
	gate.closed.Store(false)
}

func TestAnIOThatTimesOutFailsAndItsBufferIsLeftAlone(t *testing.T) {
	parallel(t)
	const depth = 4
	c := start(t, options{gated: true})
	writer := c.open(c.config())
	if _, err := writer.WriteAt(bytes.Repeat([]byte{0xEE}, depth*blockSize), 0); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(c.context()); err != nil {
		t.Fatal(err)
	}
	c.awaitRelease()
	c.channel.IOTimeout = retry.Within(500 * time.Millisecond)
	if err := c.relay.Reconfigure(c.context(),
		relay.Settings{Channels: []relay.ChannelConfig{c.channel}}); err != nil {
		t.Fatal(err)
	}
	gate := c.gate
	gate.closed.Store(true)
	v := c.open(c.queueConfig(depth))
	submitReads(t, v.Queue(0), depth)
	expectOnce(t, collect(t, v.Queue(0), depth), depth, status.TimeOut)
	clear(v.Memory())
	gate.closed.Store(false) // now the target has the data, and nowhere to send it
	c.awaitRelease()
	if submitted, completed := gate.submitted.Load(),
		gate.completed.Load(); completed != submitted {
		t.Errorf("the volume completed %d requests of %d", completed, submitted)
	}
	if !bytes.Equal(v.Memory(), make([]byte, len(v.Memory()))) {
		t.Error("the target has written to a buffer that the client had back")
	}
	c.awaitEnd(v.Done())
	if err := v.Err(); !errors.Is(err, status.TimeOut) {
		t.Errorf("the volume ended with %v", err)
	}
}

func TestAVolumeErrorFailsOnlyThatIO(t *testing.T) {
	parallel(t)
	c := start(t, options{gated: true})
	gate := c.gate
	v := c.open(c.config())
	gate.failed.Store(uint32(status.IOFailed))
	if _, err := v.ReadAt(make([]byte, blockSize), 0); !errors.Is(err, status.IOFailed) {
		t.Errorf("read: %v", err)
	}
	if err := v.Flush(); !errors.Is(err, status.IOFailed) {
		t.Errorf("flush: %v", err)
	}
	gate.failed.Store(uint32(status.Success))
	if _, err := v.ReadAt(make([]byte, blockSize), 0); err != nil {
		t.Errorf("read after the failure: %v", err)
	}
}

func TestAConfigurationBeyondTheLimitsIsRejected(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	for _, change := range []func(*client.Config){
		func(config *client.Config) { config.Queues = 1000 },
		func(config *client.Config) { config.Depth = 1 << 20 },
		func(config *client.Config) { config.BufferSize = 1 << 30 },
		func(config *client.Config) { config.BufferSize = blockSize + 1 },
	} {
		config := c.queueConfig(4)
		config.MemorySize = blockSize
		change(&config)
		v, err := client.Open(c.context(), config)
		if err == nil {
			_ = v.Close(c.context())
			t.Errorf("configuration %d queues, depth %d, buffer %d was accepted", config.Queues,
				config.Depth, config.BufferSize)
			continue
		}
		if code := status.CodeOf(err); code != status.TooBig && code != status.InvalidValue {
			t.Errorf("refused with %v", err)
		}
	}
}

func TestALimitThatIsExceededIsNamedByItsKey(t *testing.T) {
	parallel(t)
	c := start(t, options{channel: func(c *relay.ChannelConfig) {
		c.Limits = relay.Limits{MaxQueues: 2, MaxDepth: 8, MaxBufferSize: 4 * blockSize,
			MaxOutstanding: 12, MaxExport: 1 << 20}
	}})
	for key, change := range map[string]func(*client.Config){
		"limits.queues":      func(config *client.Config) { config.Queues = 3 },
		"limits.depth":       func(config *client.Config) { config.Depth = 9 },
		"limits.buffer_size": func(config *client.Config) { config.BufferSize = 5 * blockSize },
		"limits.outstanding": func(config *client.Config) { config.Queues, config.Depth = 2, 8 },
		"limits.export":      func(config *client.Config) { config.MemorySize = 2 << 20 },
	} {
		config := c.queueConfig(4)
		config.BufferSize, config.MemorySize = blockSize, blockSize
		change(&config)
		v, err := client.Open(c.context(), config)
		if err == nil {
			_ = v.Close(c.context())
		}
		if !errors.Is(err, status.TooBig) || !strings.Contains(err.Error(), key+" of the relay") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestASilentTargetIsNotReady(t *testing.T) {
	parallel(t)
	// The kernel accepts connections on behalf of a listener that never does.
	silent, err := net.Listen("tcp", testkit.Endpoint(t).String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	config := channelTo("c", silent.Addr().(*net.TCPAddr).AddrPort())
	config.ControlTimeout = 50 * time.Millisecond
	f := startFleet(t, 0, func([]netip.AddrPort) []relay.ChannelConfig {
		return []relay.ChannelConfig{config}
	})
	if s := f.awaitState("c", relay.LinkWaiting).Link; s.Connects != 0 ||
		!errors.Is(s.LastError, status.TimeOut) {
		t.Errorf("the link to a silent target is %+v", s)
	}
}

func TestKeepAlivesPreserveAnIdleSession(t *testing.T) {
	// Not parallel: a worker must come to its keep-alive within a second.
	keepAlive := controlmsg.KeepAliveConfig{Interval: 20 * time.Millisecond, DeadAfter: time.Second}
	c := start(t, options{
		target:  func(config *target.Config) { config.KeepAlive = keepAlive },
		channel: func(config *relay.ChannelConfig) { config.KeepAlive = keepAlive },
	})
	v := c.open(c.config())
	if _, err := v.WriteAt([]byte("alive"), 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * keepAlive.DeadAfter / 2) // only keep-alives pass between relay and target
	if _, err := v.WriteAt([]byte("still alive"), 0); err != nil {
		t.Errorf("an idle session was cut off: %v", err)
	}
	if s := c.status(client.DefaultChannelName).Link; s.Losses != 0 {
		t.Errorf("the relay lost the target %d times", s.Losses)
	}
}
