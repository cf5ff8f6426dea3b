// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *Suite) testProvider(t *testing.T) {
	t.Run("HasAName", func(t *testing.T) {
		if s.Provider.Name() == "" {
			t.Error("the provider has no name")
		}
	})
	t.Run("CapabilitiesAreUsable", func(t *testing.T) {
		c := s.Capabilities
		if !c.Server || !c.Client || !c.Consumer || !c.Producer {
			t.Errorf("the device lacks a role: %+v", c)
		}
		for what, value := range map[string]int{
			"MaxNameLength": c.MaxNameLength, "MaxMessageSize": c.MaxMessageSize,
			"MaxReceiveQueue": c.MaxReceiveQueue,
			"MaxClients":      c.MaxClients, "MaxConsumers": c.MaxConsumers,
			"MaxReceives":   c.MaxReceives,
			"MaxMemorySize": c.MaxMemorySize,
			"MaxSendTasks":  c.MaxSendTasks, "MaxBufferLength": c.MaxBufferLength,
		} {
			if value < 1 {
				t.Errorf("%s is %d", what, value)
			}
		}
		if c.MaxImmediateLength < 0 || c.MaxImmediateLength > comch.MaxImmediateLength {
			t.Errorf("MaxImmediateLength is %d", c.MaxImmediateLength)
		}
	})
}

func (s *Suite) testServer(t *testing.T) {
	s.testFreeNames(t)
	t.Run("SeveralNamesLiveSideBySide", func(t *testing.T) {
		first, second := s.ServerConfig(), s.ServerConfig()
		firstServer, secondServer := s.Listen(t, first), s.Listen(t, second)
		s.join(t, secondServer, second)
		s.join(t, firstServer, first)
	})
	t.Run("LongestNameIsUsable", func(t *testing.T) {
		config := s.ServerConfig()
		config.Name += strings.Repeat("n", s.Capabilities.MaxNameLength-len(config.Name))
		s.connectWith(t, config)
	})
	t.Run("BadNamesAreRejected", s.testBadNames)
	t.Run("AcceptEndsWithItsContext", func(t *testing.T) {
		server := s.Listen(t, s.ServerConfig())
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if _, err := server.Accept(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
	t.Run("CloseEndsAccept", func(t *testing.T) {
		server := s.Listen(t, s.ServerConfig())
		failed := make(chan error, 1)
		go func() {
			_, err := server.Accept(context.Background())
			failed <- err
		}()
		CloseAll(t, server)
		WantCode(t, "accept on a closed server", <-failed, status.Shutdown)
	})
	t.Run("ConnectionsOutliveTheServer", func(t *testing.T) {
		config := s.ServerConfig()
		server := s.Listen(t, config)
		p := s.join(t, server, config)
		CloseAll(t, server)
		exchange(t, p.client, p.server, "still here")
		exchange(t, p.server, p.client, "so am I")
	})
	t.Run("AddressIsNotEmpty", func(t *testing.T) {
		if server := s.Listen(t, s.ServerConfig()); server.Address() == "" {
			t.Error("no address")
		}
	})
}

// testFreeNames tests when a name can be used again.
func (s *Suite) testFreeNames(t *testing.T) {
	t.Run("NameIsUniqueUntilClosed", func(t *testing.T) {
		config := s.ServerConfig()
		first := s.Listen(t, config)
		_, err := s.Provider.Listen(testContext(t), config)
		WantCode(t, "listen under a name in use", err, status.AlreadyExist)
		CloseAll(t, first)
		CloseAll(t, s.Listen(t, config))
	})
	t.Run("NameIsFreeOnceTheLastConnectionIsClosed", func(t *testing.T) {
		config := s.ServerConfig()
		for range 20 {
			server := s.Listen(t, config)
			first, second := s.join(t, server, config), s.join(t, server, config)
			CloseAll(t, first.server, server, second.server)
		}
	})
	t.Run("NameIsFreeAlthoughAClientWasNotAccepted", func(t *testing.T) {
		config := s.ServerConfig()
		for range 20 {
			server := s.Listen(t, config)
			client, err := s.Provider.Connect(testContext(t), s.ClientConfig(config.Name))
			if err != nil {
				t.Fatal(err)
			}
			CloseAll(t, server)
			CloseAll(t, s.Listen(t, config), client)
		}
	})
}

func (s *Suite) testBadNames(t *testing.T) {
	tooLong := strings.Repeat("n", s.Capabilities.MaxNameLength+1)
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b", tooLong} {
		config := s.ServerConfig()
		config.Name = name
		_, err := s.Provider.Listen(testContext(t), config)
		WantCode(t, "listen as "+name, err, status.InvalidValue)
		_, err = s.Provider.Connect(testContext(t), s.ClientConfig(name))
		WantCode(t, "connect to "+name, err, status.InvalidValue)
	}
}

func (s *Suite) testConnect(t *testing.T) {
	t.Run("MissingServerIsNotFound", func(t *testing.T) {
		_, err := s.Provider.Connect(testContext(t), s.ClientConfig(NewName()))
		s.WantRejection(t, "connect without a server", err, status.NotFound)
	})
	t.Run("ClosedServerIsNotFound", func(t *testing.T) {
		config := s.ServerConfig()
		CloseAll(t, s.Listen(t, config))
		_, err := s.Provider.Connect(testContext(t), s.ClientConfig(config.Name))
		s.WantRejection(t, "connect to a closed server", err, status.NotFound)
	})
	t.Run("PeersKnowEachOther", s.testPeers)
	t.Run("UsersNeedCredentials", func(t *testing.T) {
		config := s.ServerConfig()
		config.AllowUsers = []uint32{uint32(os.Geteuid())}
		server, err := s.Provider.Listen(testContext(t), config)
		if s.Capabilities.PeerCredentials {
			if err != nil {
				t.Fatal(err)
			}
			CloseAll(t, server)
			return
		}
		WantCode(t, "listen for some users", err, status.InvalidValue)
	})
	t.Run("MessageSizesHaveToAgree", func(t *testing.T) {
		config := s.ServerConfig()
		config.MaxMessageSize = s.Capabilities.MaxMessageSize / 2
		server := s.Listen(t, config)
		_, err := s.Provider.Connect(testContext(t), s.ClientConfig(config.Name))
		s.WantRejection(t, "connect with another message size", err, status.InvalidValue)
		p := s.join(t, server, config)
		if p.client.MaxMessageSize() != config.MaxMessageSize ||
			p.server.MaxMessageSize() != config.MaxMessageSize {
			t.Errorf("agreed on %d and %d bytes, want %d", p.client.MaxMessageSize(),
				p.server.MaxMessageSize(),
				config.MaxMessageSize)
		}
	})
	t.Run("TooManyClientsAreRejectedUntilOneDisconnects", s.testFullServer)
	t.Run("ConnectEndsWithItsContext", func(t *testing.T) {
		config := s.ServerConfig()
		s.Listen(t, config)
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if _, err := s.Provider.Connect(ctx, s.ClientConfig(config.Name)); err == nil {
			t.Error("connected although the context was canceled")
		}
	})
	t.Run("ImpossibleLimitsAreRejected", func(t *testing.T) {
		config := s.ServerConfig()
		config.MaxMessageSize = s.Capabilities.MaxMessageSize + 1
		_, err := s.Provider.Listen(testContext(t), config)
		WantCode(t, "listen with too large messages", err, status.InvalidValue)
		client := s.ClientConfig(NewName())
		client.ReceiveQueue = -1
		_, err = s.Provider.Connect(testContext(t), client)
		WantCode(t, "connect with a negative receive queue", err, status.InvalidValue)
	})
}

func (s *Suite) testPeers(t *testing.T) {
	p := s.connect(t)
	if !s.Capabilities.PeerCredentials {
		if p.server.Peer() != (comch.Peer{}) || p.client.Peer() != (comch.Peer{}) {
			t.Errorf("peers are %+v and %+v, but the provider does not know them",
				p.server.Peer(), p.client.Peer())
		}
		return
	}
	want := comch.Peer{Known: true, PID: os.Getpid(), UID: uint32(os.Geteuid()),
		GID: uint32(os.Getegid())}
	if got := p.server.Peer(); got != want {
		t.Errorf("server's peer is %+v, want %+v", got, want)
	}
	if got := p.client.Peer(); got != want {
		t.Errorf("client's peer is %+v, want %+v", got, want)
	}
}

// WantRejection fails the test unless a connection was rejected with the code or, if the provider
// has no reasons, in any way that a client can find out.
func (s *Suite) WantRejection(t *testing.T, what string, err error, code status.Code) {
	t.Helper()
	if s.Capabilities.RejectionReasons || errors.Is(err, code) {
		WantCode(t, what, err, code)
		return
	}
	if !errors.Is(err, status.ConnectionReset) && !errors.Is(err, status.NotFound) &&
		!errors.Is(err, status.TimeOut) {
		t.Errorf("%s: got error %v, want %v, NOT_FOUND, or TIME_OUT", what, err,
			status.ConnectionReset)
	}
}

// testOneMachine tests what only an emulation can promise, which sees both sides of the bus.
func (s *Suite) testOneMachine(t *testing.T) {
	t.Run("TwoServersOfOneNameAreAnError", func(t *testing.T) {
		if s.OtherDevice == "" {
			t.Skip("Config.OtherDevice names no other DPU device")
		}
		config := s.ServerConfig()
		s.Listen(t, config)
		other := config
		other.Device = s.OtherDevice
		second := s.Listen(t, other)
		_, err := s.Provider.Connect(testContext(t), s.ClientConfig(config.Name))
		WantCode(t, "connect to an ambiguous name", err, status.InvalidValue)
		CloseAll(t, second)
		if _, err := s.Provider.Connect(testContext(t), s.ClientConfig(config.Name)); err != nil {
			t.Errorf("connect after one of them was closed: %v", err)
		}
	})
	t.Run("TheEndIsKnownAtOnce", func(t *testing.T) {
		s.bothWays(t, func(t *testing.T, from, to comch.Connection) {
			CloseAll(t, from)
			if !comch.HasEnded(to, time.Now()) {
				t.Error("the peer does not know of a close")
			}
		})
		s.bothWays(t, func(t *testing.T, from, to comch.Connection) {
			newPath(t, from, to)
			from.Abort()
			if !comch.HasEnded(to, time.Now()) {
				t.Error("the peer does not know of an abort")
			}
		})
	})
	t.Run("KnowsPeersAndReasons", func(t *testing.T) {
		if c := s.Capabilities; !c.PeerCredentials || !c.RejectionReasons {
			t.Errorf("the device does not know its peers (%v), or has no reasons for them (%v)",
				c.PeerCredentials, c.RejectionReasons)
		}
	})
}

func (s *Suite) testFullServer(t *testing.T) {
	config := s.ServerConfig()
	config.MaxClients = 2
	rejected := make(chan error, 1)
	config.Refused = func(_ comch.Peer, reason error) { rejected <- reason }
	server := s.Listen(t, config)
	first := s.join(t, server, config)
	s.join(t, server, config)
	third, err := s.Provider.Connect(testContext(t), s.ClientConfig(config.Name))
	if err == nil && !s.Capabilities.RejectionReasons { // it finds out at once
		awaitDone(t, third)
		err = third.Err()
		CloseAll(t, third)
	}
	s.WantRejection(t, "connect one client too many", err, status.Full)
	if s.Capabilities.RejectionReasons {
		WantCode(t, "reason reported to the server", <-rejected, status.Full)
	}
	CloseAll(t, first.client)
	awaitDone(t, first.server)
	s.join(t, server, config)
}

// exchange sends a control message and checks that it arrives.
func exchange(t *testing.T, from, to comch.Connection, text string) {
	t.Helper()
	ctx := testContext(t)
	if err := from.Send(ctx, []byte(text)); err != nil {
		t.Fatal(err)
	}
	message, err := to.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if string(message) != text {
		t.Fatalf("received %q, want %q", message, text)
	}
}

func (s *Suite) testMessages(t *testing.T) {
	t.Run("ArriveWholeAndInOrder", func(t *testing.T) { s.bothWays(t, testOrder) })
	t.Run("MayHaveAnySizeUpToTheLimit", func(t *testing.T) { s.bothWays(t, testSizes) })
	t.Run("BelongToTheReceiver", func(t *testing.T) { s.bothWays(t, testOwnership) })
	t.Run("WaitWhileTheQueueIsFull", s.testFullQueue)
	t.Run("ReceiveEndsWithItsContext", func(t *testing.T) {
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if _, err := s.connect(t).client.Receive(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
	t.Run("KeepTheirPlaceAmongConsumers", func(t *testing.T) { s.bothWays(t, testArrivals) })
	t.Run("OfSeveralClientsDoNotMix", s.testSeveralClients)
	t.Run("SentBeforeTheEndAreReceived", func(t *testing.T) { s.bothWays(t, testLastWords) })
}

// bothWays runs a test in either direction of a connection.
func (s *Suite) bothWays(t *testing.T, run func(t *testing.T, from, to comch.Connection)) {
	t.Run("ClientToServer", func(t *testing.T) {
		p := s.connect(t)
		run(t, p.client, p.server)
	})
	t.Run("ServerToClient", func(t *testing.T) {
		p := s.connect(t)
		run(t, p.server, p.client)
	})
}

func testOrder(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	const count = 1000
	failed := make(chan error, 1)
	go func() {
		for i := range count {
			if err := from.Send(ctx, fmt.Appendf(nil, "message %d", i)); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i := range count {
		message, err := to.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("message %d", i); string(message) != want {
			t.Fatalf("received %q, want %q", message, want)
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// testArrivals lets a side send messages while its consumers begin and end.
func testArrivals(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	const rounds = 30
	failed := make(chan error, 1)
	go func() {
		for i := range rounds {
			if err := actInOrder(ctx, from, i); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i := range rounds {
		for _, want := range []string{fmt.Sprintf("before %d", i), "created",
			fmt.Sprintf("between %d", i), "expired"} {
			next, err := to.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got := string(next.Message)
			if !next.IsMessage() {
				got = "expired"
				if next.Event.Created {
					got = "created"
				}
			}
			if got != want {
				t.Fatalf("in round %d, %q arrived, want %q", i, got, want)
			}
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// actInOrder creates and destroys a consumer, with messages around.
func actInOrder(ctx context.Context, from comch.Connection, round int) error {
	if err := from.Send(ctx, fmt.Appendf(nil, "before %d", round)); err != nil {
		return err
	}
	consumer, err := from.NewConsumer(ctx, comch.ConsumerConfig{Receives: 1, MemorySize: 64})
	if err != nil {
		return err
	}
	err = from.Send(ctx, fmt.Appendf(nil, "between %d", round))
	return errors.Join(err, consumer.Close())
}

func testSizes(t *testing.T, from, to comch.Connection) {
	limit := from.MaxMessageSize()
	for _, size := range []int{1, limit - 1, limit} {
		exchange(t, from, to, string(bytes.Repeat([]byte{0xa5}, size)))
	}
	err := from.Send(testContext(t), nil)
	if err == nil {
		if message, err := to.Receive(testContext(t)); err != nil || len(message) != 0 {
			t.Errorf("received %q, %v instead of an empty message", message, err)
		}
	} else {
		WantCode(t, "send an empty message", err, status.NotSupported)
	}
	err = from.Send(testContext(t), make([]byte, limit+1))
	WantCode(t, "send more than the limit", err, status.TooBig)
	exchange(t, from, to, "after the rejection")
}

func testOwnership(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	message := []byte("first")
	for _, text := range []string{"first", "other"} {
		copy(message, text)
		if err := from.Send(ctx, message); err != nil {
			t.Fatal(err)
		}
		copy(message, "xxxxx")
	}
	first, err := to.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, err := to.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if string(first) != "first" || string(second) != "other" {
		t.Errorf("received %q and %q", first, second)
	}
}

func (s *Suite) testFullQueue(t *testing.T) {
	config := s.ServerConfig()
	config.ReceiveQueue = 3
	p := s.connectWith(t, config)
	ctx := testContext(t)
	for range config.ReceiveQueue {
		if err := p.client.Send(ctx, []byte("queued")); err != nil {
			t.Fatal(err)
		}
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.client.Send(canceled, []byte("too many")); !errors.Is(err, context.Canceled) {
		t.Fatalf("send to a full queue: got %v, want %v", err, context.Canceled)
	}
	sent := make(chan error, 1)
	go func() { sent <- p.client.Send(ctx, []byte("last")) }()
	for _, want := range []string{"queued", "queued", "queued", "last"} {
		message, err := p.server.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if string(message) != want {
			t.Fatalf("received %q, want %q", message, want)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func (s *Suite) testSeveralClients(t *testing.T) {
	config := s.ServerConfig()
	server := s.Listen(t, config)
	var pairs []pair
	for range 4 {
		pairs = append(pairs, s.join(t, server, config))
	}
	for i, p := range pairs {
		exchange(t, p.client, p.server, fmt.Sprintf("from client %d", i))
		exchange(t, p.server, p.client, fmt.Sprintf("to client %d", i))
	}
}

func testLastWords(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	for i := range 5 {
		if err := from.Send(ctx, fmt.Appendf(nil, "word %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	CloseAll(t, from)
	awaitDone(t, to)
	for i := range 5 {
		message, err := to.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("word %d", i); string(message) != want {
			t.Errorf("received %q, want %q", message, want)
		}
	}
	_, err := to.Receive(ctx)
	WantCode(t, "receive after the last message", err, status.NotConnected)
}

func (s *Suite) testEnding(t *testing.T) {
	t.Run("CloseIsSeenByBothSides", func(t *testing.T) { s.bothWays(t, s.testClose) })
	t.Run("AbortIsSeenByBothSides", func(t *testing.T) { s.bothWays(t, testAbort) })
	t.Run("MessagesInFlightSurviveAbort",
		func(t *testing.T) { s.bothWays(t, testAbortWithMessages) })
	t.Run("NothingIsReceivedAfterOwnAbort",
		func(t *testing.T) { s.bothWays(t, testOwnAbortWithMessages) })
	t.Run("AbortDuringTrafficStopsBothSides",
		func(t *testing.T) { s.bothWays(t, testAbortDuringTraffic) })
	t.Run("WaitingCallsReturn", func(t *testing.T) { s.bothWays(t, testWaitingCalls) })
	t.Run("TheEndCanBeAskedFor", func(t *testing.T) { s.bothWays(t, testProbe) })
	t.Run("NothingWorksAfterTheEnd", func(t *testing.T) { s.bothWays(t, testAfterTheEnd) })
	t.Run("CanBeAbortedAndClosedTwice", func(t *testing.T) {
		p := s.connect(t)
		p.client.Abort()
		p.client.Abort()
		CloseAll(t, p.client, p.client)
		awaitDone(t, p.server)
		CloseAll(t, p.server, p.server)
	})
}

func (s *Suite) testClose(t *testing.T, from, to comch.Connection) {
	if from.Err() != nil || to.Err() != nil {
		t.Errorf("errors before the end: %v, %v", from.Err(), to.Err())
	}
	CloseAll(t, from)
	awaitDone(t, from)
	awaitDone(t, to)
	WantCode(t, "reason of the side that closed", from.Err(), status.Shutdown)
	WantCode(t, "reason of the other side", to.Err(), s.CodeOfEnd())
}

func testAbort(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	back := newPath(t, to, from)
	from.Abort()
	awaitDone(t, from)
	awaitDone(t, to)
	WantCode(t, "reason of the side that aborted", from.Err(), status.ConnectionAborted)
	WantCode(t, "reason of the other side", to.Err(), status.ConnectionReset)
	for what, state := range map[string]func() progress.State{
		"consumer": x.consumer.State, "producer": x.producer.State,
		"consumer back": back.consumer.State, "producer back": back.producer.State,
	} {
		if got := state(); got == progress.Running {
			t.Errorf("%s is running after the end", what)
		}
	}
	WantCode(t, "send after the end", x.producer.Send([]byte("x"), nil), status.NotConnected)
	WantCode(t, "send back after the end", back.producer.Send([]byte("x"), nil),
		status.NotConnected)
	WantCode(t, "close with consumers", from.Close(), status.InUse)
	CloseAll(t, x.consumer, x.producer, back.consumer, back.producer, from, to)
}

// testProbe asks for the end of a connection with messages that nobody has read.
func testProbe(t *testing.T, from, to comch.Connection) {
	wantConnected := func() {
		t.Helper()
		if comch.HasEnded(from, time.Now()) || comch.HasEnded(to, time.Now()) {
			t.Error("a connection counts as ended before its end")
		}
	}
	wantConnected()
	if err := from.Send(testContext(t), []byte("unread")); err != nil {
		t.Fatal(err)
	}
	x := newPath(t, from, to)
	wantConnected()
	from.Abort()
	if !comch.HasEnded(from, time.Now()) {
		t.Error("a connection goes on for the side that has aborted it")
	}
	testkit.Eventually(t, "the peer finds the end", func() bool { return comch.HasEnded(to, time.Now()) })
	CloseAll(t, x.consumer, x.producer, from, to)
	if !comch.HasEnded(to, time.Now()) {
		t.Error("a connection goes on although both sides have closed it")
	}
}

// testAbortWithMessages aborts the sender while messages are in the ring. The receiver can still
// poll them, and their memory stays valid.
func testAbortWithMessages(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	for i := range 5 {
		Send(t, x.producer, []byte{byte(i)}, nil)
	}
	from.Abort()
	awaitDone(t, to)
	for i := range 5 {
		if got := AwaitReceived(t, x.consumer); x.consumer.Memory()[got.Offset] != byte(i) {
			t.Errorf("message %d arrived as %+v", i, got)
		}
	}
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages that were not sent", n)
	}
}

// testOwnAbortWithMessages aborts the receiver while messages are in the ring.
func testOwnAbortWithMessages(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	Send(t, x.producer, []byte("first"), nil)
	AwaitReceived(t, x.consumer)
	Send(t, x.producer, []byte("second"), nil)
	to.Abort()
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages after aborting", n)
	}
	if !x.consumer.Arm() {
		t.Error("consumer did not arm after aborting")
	}
	x.consumer.Disarm()
}

func testAbortDuringTraffic(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	started, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for sent := 0; x.producer.Send([]byte("x"), nil) != error(status.NotConnected); sent++ {
			x.producer.Flush()
			collect(x.producer)
			if sent == receives {
				close(started)
			}
		}
	}()
	var received [4]comch.Received
	aborted := false
	for x.consumer.State() == progress.Running {
		for _, r := range received[:x.consumer.Poll(received[:])] {
			if err := x.consumer.PostReceive(r.Offset, bufferSize, r.UserData); err != nil {
				t.Fatal(err)
			}
		}
		x.consumer.Flush()
		select {
		case <-started:
			if !aborted {
				aborted = true
				to.Abort()
			}
		default:
		}
	}
	<-stopped
	CloseAll(t, x.consumer, x.producer)
}

func testWaitingCalls(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	calls := map[string]func() error{
		"receive": func() error { _, err := to.Receive(ctx); return err },
		"event":   func() error { _, err := to.NextConsumerEvent(ctx); return err },
		"send": func() error {
			for {
				if err := to.Send(ctx, []byte("x")); err != nil {
					return err
				}
			}
		},
	}
	type outcome struct {
		what string
		err  error
	}
	outcomes := make(chan outcome, len(calls))
	for what, call := range calls {
		go func() { outcomes <- outcome{what, call()} }()
	}
	from.Abort()
	for range calls {
		got := <-outcomes
		WantCode(t, got.what, got.err, status.NotConnected)
	}
}

func testAfterTheEnd(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 1, MemorySize: 1})
	nextEvent(t, from, comch.ConsumerEvent{ID: consumer.ID(), Created: true})
	to.Abort()
	awaitDone(t, from)
	for _, side := range []comch.Connection{from, to} {
		_, err := side.NewConsumer(ctx, comch.ConsumerConfig{Receives: 1, MemorySize: 1})
		WantCode(t, "create a consumer", err, status.NotConnected)
		WantCode(t, "send", side.Send(ctx, []byte("x")), status.NotConnected)
		_, err = side.Receive(ctx)
		WantCode(t, "receive", err, status.NotConnected)
		if _, err := side.NewProducer(ctx, consumer.ID()); err == nil {
			t.Error("created a producer")
		}
	}
}

// CodeOfEnd returns what a side learns when the other has ended the connection in order.
func (s *Suite) CodeOfEnd() status.Code {
	if s.Capabilities.RejectionReasons {
		return status.Shutdown
	}
	return status.ConnectionReset
}
