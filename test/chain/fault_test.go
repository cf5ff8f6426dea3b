// SPDX-License-Identifier: Apache-2.0

package chain

import (
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
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

func TestAConfigurationBeyondTheLimitsIsRejected(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	for _, change := range []func(*client.Config){
		func(config *client.Config) { config.Queues = 1000 },
		func(config *client.Config) { config.Depth = 1 << 20 },
		func(config *client.Config) { config.BufferSize = 1 << 30 },
		func(config *client.Config) { config.BufferSize = blockSize + 1 },
	} {
		config := c.QueueConfig(4)
		config.MemorySize = blockSize
		change(&config)
		v, err := client.Open(c.Context(), config)
		if err == nil {
			_ = v.Close(c.Context())
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
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{Channel: func(c *relay.ChannelConfig) {
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
		config := c.QueueConfig(4)
		config.BufferSize, config.MemorySize = blockSize, blockSize
		change(&config)
		v, err := client.Open(c.Context(), config)
		if err == nil {
			_ = v.Close(c.Context())
		}
		if !errors.Is(err, status.TooBig) || !strings.Contains(err.Error(), key+" of the relay") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestASilentTargetIsNotReady(t *testing.T) {
	chaintest.Parallel(t)
	// The kernel accepts connections on behalf of a listener that never does.
	silent, err := net.Listen("tcp", testkit.Endpoint(t).String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	config := chaintest.ChannelTo("c", silent.Addr().(*net.TCPAddr).AddrPort())
	config.ControlTimeout = 50 * time.Millisecond
	f := startFleet(t, 0, func([]netip.AddrPort) []relay.ChannelConfig {
		return []relay.ChannelConfig{config}
	})
	if s := f.AwaitState("c", relay.LinkWaiting).Link; s.Connects != 0 ||
		!errors.Is(s.LastError, status.TimeOut) {
		t.Errorf("the link to a silent target is %+v", s)
	}
}

func TestKeepAlivesPreserveAnIdleSession(t *testing.T) {
	// Not parallel: a worker must come to its keep-alive within a second.
	keepAlive := controlmsg.KeepAliveConfig{Interval: 20 * time.Millisecond, DeadAfter: time.Second}
	c := chaintest.Start(t, options{
		Target:  func(config *target.Config) { config.KeepAlive = keepAlive },
		Channel: func(config *relay.ChannelConfig) { config.KeepAlive = keepAlive },
	})
	v := c.Open(c.Config())
	if _, err := v.WriteAt([]byte("alive"), 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * keepAlive.DeadAfter / 2) // only keep-alives pass between relay and target
	if _, err := v.WriteAt([]byte("still alive"), 0); err != nil {
		t.Errorf("an idle session was cut off: %v", err)
	}
	if s := c.Status(client.DefaultChannelName).Link; s.Losses != 0 {
		t.Errorf("the relay lost the target %d times", s.Losses)
	}
}
