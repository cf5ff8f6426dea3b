// Package comchtest is the conformance suite for providers of package comch, and for package
// contexts on top of them. It follows the DOCA Comch guide sentence by sentence;
// docs/comch-conformance.md names the tests of each sentence.
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

// suite is one run of the suite.
type suite struct {
	Config
	capabilities comch.Capabilities
}

var nameCounter atomic.Uint64

// group is a part of the suite.
type group struct {
	name string
	run  func(*suite, *testing.T)
}

// Run runs the part of the suite that every provider passes, hardware included, as subtests of t.
// It skips a test only if the provider fails with status.NotSupported, or if the capabilities of
// the device or an empty field of config say that there is nothing to test.
func Run(t *testing.T, config Config) {
	t.Helper()
	runGroups(t, config, []group{
		{"Provider", (*suite).testProvider},
		{"Server", (*suite).testServer},
		{"Connect", (*suite).testConnect},
		{"Messages", (*suite).testMessages},
		{"Consumers", (*suite).testConsumers},
		{"DataPath", (*suite).testDataPath},
		{"Parallel", (*suite).testParallel},
		{"Wait", (*suite).testWait},
		{"Ending", (*suite).testEnding},
		{"Memory", (*suite).testMemory},
		{"ContextStates", (*suite).testContextStates},
		{"ContextConfiguration", (*suite).testContextConfiguration},
		{"ContextMessages", (*suite).testContextMessages},
		{"ContextConnections", (*suite).testContextConnections},
		{"ContextFastPath", (*suite).testContextFastPath},
		{"ContextEnding", (*suite).testContextEnding},
		{"MsgQ", (*suite).testMsgQ},
		{"ContextThreads", (*suite).testContextThreads},
	})
}

// RunOnOneMachine runs the part that only an emulation passes, because it sees both sides.
func RunOnOneMachine(t *testing.T, config Config) {
	t.Helper()
	runGroups(t, config, []group{
		{"OneMachine", (*suite).testOneMachine},
	})
}

func runGroups(t *testing.T, config Config, groups []group) {
	t.Helper()
	s := &suite{Config: config}
	var err error
	s.capabilities, err = config.Provider.Capabilities(s.device())
	testkit.SkipIfNotSupported(t, "get capabilities of device "+s.device(), err)
	host, err := config.Provider.Capabilities(s.hostDevice())
	testkit.SkipIfNotSupported(t, "get capabilities of device "+s.hostDevice(), err)
	s.capabilities.Client = s.capabilities.Client || host.Client // of the pair of devices
	for _, group := range groups {
		if len(config.Groups) == 0 || slices.Contains(config.Groups, group.name) {
			t.Run(group.name, func(t *testing.T) { group.run(s, t) })
		}
	}
}

// device returns the device that servers listen on.
func (s *suite) device() string { return cmp.Or(s.Device, "03:00.0") }

// hostDevice returns the device that clients connect from.
func (s *suite) hostDevice() string { return cmp.Or(s.HostDevice, "b1:00.0") }

// testContext returns a context that bounds a test.
func testContext(t *testing.T) context.Context {
	t.Helper()
	return testkit.Context(t)
}

// newName returns a server name that no other test uses.
func newName() string { return fmt.Sprintf("comchtest %d", nameCounter.Add(1)) }

func (s *suite) serverConfig() comch.ServerConfig {
	return comch.ServerConfig{Device: s.Device, Representor: s.Representor, Name: newName()}
}

func (s *suite) listen(t *testing.T, config comch.ServerConfig) comch.Server {
	t.Helper()
	server, err := s.Provider.Listen(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server
}

func (s *suite) clientConfig(name string) comch.ClientConfig {
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

func (s *suite) connect(t *testing.T) pair {
	t.Helper()
	return s.connectWith(t, s.serverConfig())
}

func (s *suite) connectWith(t *testing.T, config comch.ServerConfig) pair {
	t.Helper()
	server := s.listen(t, config)
	return s.join(t, server, config)
}

// join connects another client to a server.
func (s *suite) join(t *testing.T, server comch.Server, config comch.ServerConfig) pair {
	t.Helper()
	ctx := testContext(t)
	client := s.clientConfig(config.Name)
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

// wantCode fails the test unless err has the code.
func wantCode(t *testing.T, what string, err error, code status.Code) {
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

// awaitReceived polls until a receive completes.
func awaitReceived(t *testing.T, consumer comch.Consumer) comch.Received {
	t.Helper()
	var received [1]comch.Received
	testkit.Eventually(t, "a message arrives", func() bool { return consumer.Poll(received[:]) == 1 })
	return received[0]
}

func closeAll(t *testing.T, closers ...interface{ Close() error }) {
	t.Helper()
	for _, c := range closers {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	}
}
