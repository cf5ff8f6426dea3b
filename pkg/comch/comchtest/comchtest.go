// SPDX-License-Identifier: Apache-2.0

// Package comchtest is the conformance suite for providers of package comch. It follows the DOCA
// Comch guide sentence by sentence; docs/dev/comch-conformance.md names the tests of each sentence.
// Package contextstest is the part for package contexts on top of them.
package comchtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Config describes the provider to test. Servers and clients run in the process of the test, so the
// provider must be able to connect to itself.
type Config struct {
	Provider comch.Provider
	// Servers listen on Device for Representor, and clients connect from HostDevice; "" means the
	// default of the provider.
	Device, Representor, HostDevice string
	// OtherHostDevice is another host function that Device can represent. The tests that need it
	// are skipped if it is "".
	OtherHostDevice string
	// OtherDevice is another DPU device that serves the same representor. The tests that need it
	// are skipped if it is "".
	OtherDevice string
	// ExportNeedsDescriptor reports whether the provider can export only memory that has a file
	// descriptor.
	ExportNeedsDescriptor bool
	// Groups restricts the suite to the groups with these names; empty means all.
	Groups []string
}

// Suite is one run of the suite.
type Suite struct {
	Config
	// Capabilities are those of the device of servers. Client says whether clients can connect.
	Capabilities comch.Capabilities
}

var nameCounter atomic.Uint64

// Group is a part of the suite.
type Group struct {
	Name string
	Run  func(*Suite, *testing.T)
}

// Run runs the part of the suite that every provider passes, hardware included, as subtests of t.
// It skips a test only if the provider fails with status.NotSupported, or if the capabilities of
// the device or an empty field of config say that there is nothing to test.
func Run(t *testing.T, config Config) {
	t.Helper()
	RunGroups(t, config, []Group{
		{"Provider", (*Suite).testProvider},
		{"Server", (*Suite).testServer},
		{"Connect", (*Suite).testConnect},
		{"Messages", (*Suite).testMessages},
		{"Consumers", (*Suite).testConsumers},
		{"DataPath", (*Suite).testDataPath},
		{"Parallel", (*Suite).testParallel},
		{"Wait", (*Suite).testWait},
		{"Ending", (*Suite).testEnding},
		{"Memory", (*Suite).testMemory},
	})
}

// RunOnOneMachine runs the part that only an emulation passes, because it sees both sides.
func RunOnOneMachine(t *testing.T, config Config) {
	t.Helper()
	RunGroups(t, config, []Group{
		{"OneMachine", (*Suite).testOneMachine},
	})
}

// RunGroups runs those of the groups that config.Groups names.
func RunGroups(t *testing.T, config Config, groups []Group) {
	t.Helper()
	s := &Suite{Config: config}
	var err error
	s.Capabilities, err = config.Provider.Capabilities(s.ServerDevice())
	testkit.SkipIfNotSupported(t, "get capabilities of device "+s.ServerDevice(), err)
	host, err := config.Provider.Capabilities(s.ClientDevice())
	testkit.SkipIfNotSupported(t, "get capabilities of device "+s.ClientDevice(), err)
	s.Capabilities.Client = s.Capabilities.Client || host.Client // of the pair of devices
	for _, group := range groups {
		if len(config.Groups) == 0 || slices.Contains(config.Groups, group.Name) {
			t.Run(group.Name, func(t *testing.T) { group.Run(s, t) })
		}
	}
}

// ServerDevice returns the device that servers listen on.
func (s *Suite) ServerDevice() string { return cmp.Or(s.Device, "03:00.0") }

// ClientDevice returns the device that clients connect from.
func (s *Suite) ClientDevice() string { return cmp.Or(s.HostDevice, "b1:00.0") }

// testContext returns a context that bounds a test.
func testContext(t *testing.T) context.Context {
	t.Helper()
	return testkit.Context(t)
}

// NewName returns a server name that no other test uses.
func NewName() string { return fmt.Sprintf("comchtest %d", nameCounter.Add(1)) }

// ServerConfig returns the configuration of a server with a new name.
func (s *Suite) ServerConfig() comch.ServerConfig {
	return comch.ServerConfig{Device: s.Device, Representor: s.Representor, Name: NewName()}
}

// Listen opens a server, and closes it when the test ends.
func (s *Suite) Listen(t *testing.T, config comch.ServerConfig) comch.Server {
	t.Helper()
	server, err := s.Provider.Listen(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server
}

// ClientConfig returns the configuration of a client of the server with that name.
func (s *Suite) ClientConfig(name string) comch.ClientConfig {
	return comch.ClientConfig{Device: s.HostDevice, Name: name}
}

// pair is both sides of a connection.
type pair struct {
	server, client comch.Connection
}

// sides returns both directions of the pair, by name: the sending side first.
func (p pair) sides() map[string][2]comch.Connection {
	return map[string][2]comch.Connection{
		"client to server": {p.client, p.server},
		"server to client": {p.server, p.client},
	}
}

func (s *Suite) connect(t *testing.T) pair {
	t.Helper()
	return s.connectWith(t, s.ServerConfig())
}

func (s *Suite) connectWith(t *testing.T, config comch.ServerConfig) pair {
	t.Helper()
	server := s.Listen(t, config)
	return s.join(t, server, config)
}

// join connects another client to a server.
func (s *Suite) join(t *testing.T, server comch.Server, config comch.ServerConfig) pair {
	t.Helper()
	ctx := testContext(t)
	client := s.ClientConfig(config.Name)
	client.MaxMessageSize, client.ReceiveQueue = config.MaxMessageSize, config.ReceiveQueue
	connected, err := s.Provider.Connect(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := server.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connected.Abort()
		accepted.Abort()
	})
	return pair{server: accepted, client: connected}
}

// WantCode fails the test unless err has the code.
func WantCode(t *testing.T, what string, err error, code status.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("%s: got error %v, want %v", what, err, code)
	}
}

// awaitDone waits for the end of a connection.
func awaitDone(t *testing.T, connection comch.Connection) {
	t.Helper()
	testkit.Receive(t, "the connection has ended", connection.Done())
}

// AwaitReceived polls until a receive completes.
func AwaitReceived(t *testing.T, consumer comch.Consumer) comch.Received {
	t.Helper()
	var received [1]comch.Received
	testkit.Eventually(t, "a message arrives", func() bool { return consumer.Poll(received[:]) == 1 })
	return received[0]
}

// CloseAll closes objects, one after the other.
func CloseAll(t *testing.T, closers ...interface{ Close() error }) {
	t.Helper()
	for _, c := range closers {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	}
}
