// SPDX-License-Identifier: Apache-2.0

package contextstest

import (
	"fmt"
	"os"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testContextConnections(t *testing.T) {
	t.Run("AreAnnouncedOnTheServer", s.testConnectionEvents)
	t.Run("ThatAreRejectedAreAnnouncedAsSuch", s.testRefusedEvent)
	t.Run("ThatBreakAreAnnouncedAsSuch", s.testBrokenEvent)
	t.Run("NeedAServer", s.testNoServer)
	t.Run("NeedTheServersHost", s.testOtherHost)
	t.Run("CanBeDisconnectedOneByOne", s.testDisconnectOne)
	t.Run("CannotBeDisconnectedInUse", s.testDisconnectInUse)
	t.Run("EndWithTheServer", s.testServerStop)
	t.Run("EndWithTheClient", s.testClientStop)
	t.Run("ReportConsumersThatComeAndGo", s.testConsumerEvents)
}

func (s *suite) testConnectionEvents(t *testing.T) {
	c := s.newContextPair(t)
	event := c.server.events[0]
	if event.what != "connected" || !event.successful || event.connection.Err() != nil {
		t.Errorf("first event is %+v", event)
	}
	if s.Capabilities.PeerCredentials &&
		(event.connection.Peer().PID != os.Getpid() || c.atClient.Peer().PID != os.Getpid()) {
		t.Errorf("peers are %+v and %+v", event.connection.Peer(), c.atClient.Peer())
	}
	event.connection.UserData = "mine"
	c.must(c.client.Stop())
	c.await("the disconnection", func() bool { return len(c.server.events) == 2 })
	event = c.server.events[1]
	if event.what != "disconnected" || event.successful != s.Capabilities.RejectionReasons ||
		event.connection != c.atServer || event.connection.UserData != "mine" {
		t.Errorf("second event is %+v", event)
	}
	wantCode(t, "why the connection ended", event.connection.Err(), s.CodeOfEnd())
}

func (s *suite) testRefusedEvent(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(func(c *contexts.ServerConfig) { c.MaxClients = 1 })
	h.join(server)
	second := h.newClient(server.name, nil)
	h.must(second.Start(h.engine))
	h.awaitState(second, progress.Idle)
	s.WantRejection(t, "why the second client is idle", second.Err(), status.Full)
	if !s.Capabilities.RejectionReasons {
		return // the server learns nothing of the client
	}
	second.check(t, progress.Idle, progress.Starting, progress.Idle)
	h.await("the event of the rejected client", func() bool { return len(server.events) == 2 })
	event := server.events[1]
	if event.what != "connected" || event.successful {
		t.Errorf("event of the rejected client is %+v", event)
	}
	wantCode(t, "why it was rejected", event.connection.Err(), status.Full)
	_, err := server.AllocateSend(event.connection, nil)
	wantCode(t, "allocate a send to a rejected client", err, status.InvalidValue)
	_, err = contexts.NewConsumer(event.connection, memorySize)
	wantCode(t, "create a consumer for a rejected client", err, status.NotConnected)
	_, err = contexts.NewProducer(event.connection)
	wantCode(t, "create a producer for a rejected client", err, status.NotConnected)
	wantCode(t, "disconnect a rejected client", server.Disconnect(event.connection),
		status.NotConnected)
}

func (s *suite) testBrokenEvent(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	peer, err := s.Provider.Connect(testContext(t), s.ClientConfig(server.name))
	h.must(err)
	h.await("the connection", func() bool { return len(server.events) == 1 })
	peer.Abort()
	h.await("the disconnection", func() bool { return len(server.events) == 2 })
	if event := server.events[1]; event.what != "disconnected" || event.successful {
		t.Errorf("event of a client that vanished is %+v", event)
	}
	wantCode(t, "why the connection ended", server.events[1].connection.Err(),
		status.ConnectionReset)
}

func (s *suite) testNoServer(t *testing.T) {
	h := s.newHarness(t)
	client := h.newClient(comchtest.NewName(), nil)
	h.must(client.Start(h.engine))
	h.awaitState(client, progress.Idle)
	s.WantRejection(t, "why the client is idle", client.Err(), status.NotFound)
}

// testOtherHost connects from another host function, which must not find the server.
func (s *suite) testOtherHost(t *testing.T) {
	if s.OtherHostDevice == "" {
		t.Skip("Config.OtherHostDevice names no other host function")
	}
	h := s.newHarness(t)
	server := h.startServer(nil)
	client, err := contexts.NewClient(s.Provider, s.OtherHostDevice, server.name)
	h.must(err)
	h.must(client.Configure(contexts.ClientConfig{ControlConfig: new(recorder).controlConfig()}))
	h.must(client.Start(h.engine))
	h.awaitState(client, progress.Idle)
	s.WantRejection(t, "why a client of another function is idle", client.Err(), status.NotFound)
	// Another representor can have a server of the same name.
	other, err := contexts.NewServer(s.Provider, s.ServerDevice(), s.OtherHostDevice, server.name)
	h.must(err)
	h.must(other.Configure(new(recorder).serverConfig()))
	h.must(other.Start(h.engine))
	h.must(client.Start(h.engine))
	h.awaitState(client, progress.Running)
	if len(server.events) != 0 {
		t.Error("the client of another function reached the server")
	}
	h.must(client.Stop())
	h.must(other.Stop())
	h.awaitState(client, progress.Idle)
	h.awaitState(other, progress.Idle)
}

func (s *suite) testDisconnectOne(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	first, second := h.join(server), h.join(server)
	h.must(server.Disconnect(first.atServer))
	wantCode(t, "disconnect a second time", server.Disconnect(first.atServer), status.NotConnected)
	h.awaitState(first.client, progress.Idle)
	wantCode(t, "why the first client is idle", first.client.Err(), s.CodeOfEnd())
	first.client.check(t, progress.Idle, progress.Starting, progress.Running, progress.Stopping,
		progress.Idle)
	h.await("the disconnection", func() bool { return len(server.events) == 3 })
	if event := server.events[2]; event.what != "disconnected" || !event.successful ||
		event.connection != first.atServer {
		t.Errorf("event is %+v", event)
	}
	h.submitMessage(second.client, second.atClient, "still here")
	h.await("the other client's message",
		func() bool { return len(server.messages) == 1 && len(second.client.completions) == 1 })
	second.client.free(t)
}

func (s *suite) testDisconnectInUse(t *testing.T) {
	for _, kind := range []string{"consumer", "producer"} {
		c := s.newContextPair(t)
		other := c.join(c.server)
		start := func(on *contexts.Connection) stateful {
			if kind == "consumer" {
				return c.startReceiver(on)
			}
			return c.startTransmitter(on)
		}
		atServer, atClient := start(c.atServer), start(c.atClient)
		wantCode(t, "disconnect with a "+kind, c.server.Disconnect(c.atServer), status.InUse)
		wantCode(t, "stop a server with a "+kind, c.server.Stop(), status.InUse)
		wantCode(t, "stop a client with a "+kind, c.client.Stop(), status.InUse)
		c.settle()
		for what, context := range map[string]stateful{
			"server": c.server, "client": c.client, "other client": other.client,
		} {
			if got := context.State(); got != progress.Running {
				t.Errorf("%s is %v after rejected calls", what, got)
			}
		}
		c.must(atServer.Stop())
		// Only the consumers and producers of this side prevent a disconnect.
		c.must(c.server.Disconnect(c.atServer))
		c.awaitState(atClient, progress.Idle)
		wantCode(t, "why the "+kind+" at the client ended", atClient.Err(), status.NotConnected)
		c.awaitState(c.client, progress.Idle)
	}
}

func (s *suite) testServerStop(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	pairs := []*contextPair{h.join(server), h.join(server), h.join(server)}
	consumer := h.startReceiver(pairs[1].atClient)
	h.must(server.Stop())
	if got := server.State(); got != progress.Stopping {
		t.Errorf("server is %v after stop", got)
	}
	h.awaitState(server, progress.Idle)
	h.awaitState(consumer, progress.Idle)
	for _, c := range pairs {
		h.awaitState(c.client, progress.Idle)
		wantCode(t, "why a client is idle", c.client.Err(), s.CodeOfEnd())
	}
	ended := 0
	for _, event := range server.events {
		if event.what == "disconnected" && event.successful {
			ended++
		}
	}
	if ended != len(pairs) {
		t.Errorf("the server saw %d connections end, want %d", ended, len(pairs))
	}
	again := h.newClient(server.name, nil)
	h.must(again.Start(h.engine))
	h.awaitState(again, progress.Idle)
	s.WantRejection(t, "why a client of a stopped server is idle", again.Err(), status.NotFound)
}

func (s *suite) testClientStop(t *testing.T) {
	c := s.newContextPair(t)
	consumer, producer := c.startReceiver(c.atServer), c.startTransmitter(c.atServer)
	c.must(c.client.Stop())
	if got := c.client.State(); got != progress.Stopping {
		t.Errorf("client is %v after stop", got)
	}
	c.awaitState(c.client, progress.Idle)
	wantIdle(t, c.client)
	c.awaitState(consumer, progress.Idle)
	c.awaitState(producer, progress.Idle)
	c.await("the disconnection", func() bool { return len(c.server.events) == 2 })
	_, err := contexts.NewConsumer(c.atServer, memorySize)
	wantCode(t, "create a consumer on a connection that ended", err, status.NotConnected)
	_, err = contexts.NewProducer(c.atClient)
	wantCode(t, "create a producer on a connection that ended", err, status.NotConnected)
	wantCode(t, "start a consumer on a connection that ended", consumer.Start(c.engine),
		status.NotConnected)
	wantCode(t, "start a producer on a connection that ended", producer.Start(c.engine),
		status.NotConnected)
}

func (s *suite) testConsumerEvents(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	c, other := h.join(server), h.join(server)
	first, second := c.startReceiver(c.atClient), c.startReceiver(c.atClient)
	if first.ID() == 0 || first.ID() == second.ID() {
		t.Errorf("consumers have the ids %d and %d", first.ID(), second.ID())
	}
	id := first.ID()
	c.must(first.Stop())
	own := c.startReceiver(c.atServer)
	if own.ID() == id || own.ID() == second.ID() {
		t.Errorf("consumers of both sides have the id %d", own.ID())
	}
	want := []recordedEvent{
		{connection: c.atServer, what: "created", consumer: id},
		{connection: c.atServer, what: "created", consumer: second.ID()},
		{connection: c.atServer, what: "expired", consumer: id},
	}
	c.await("the consumer events",
		func() bool { return len(server.consumers) >= len(want) && len(c.client.consumers) == 1 })
	c.settle()
	if len(server.consumers) != len(want) || len(other.client.consumers) != 0 {
		t.Fatalf("the server saw %+v, the other client %+v", server.consumers,
			other.client.consumers)
	}
	for i := range want {
		if server.consumers[i] != want[i] {
			t.Errorf("event %d is %+v, want %+v", i, server.consumers[i], want[i])
		}
	}
	seen := recordedEvent{connection: c.atClient, what: "created", consumer: own.ID()}
	if got := c.client.consumers[0]; got != seen {
		t.Errorf("the client saw %+v", got)
	}
}

func (s *suite) testContextMessages(t *testing.T) {
	t.Run("CompletedSendsAreReceived", s.testControlExchange)
	t.Run("ArriveInOrder", s.testControlOrder)
	t.Run("OfManyClientsDoNotMix", s.testManyClients)
	t.Run("NothingHappensWithoutProgress", s.testNoProgress)
	t.Run("NeedTheirOwnConnection", s.testForeignConnection)
	t.Run("FailWhenThePeerIsGone", s.testSendToGonePeer)
	t.Run("TalkToBlockingPeers", s.testBlockingPeer)
}

// testControlExchange is the control path sample of the guide: the client sends when it is
// connected, and the server replies in its callback.
func (s *suite) testControlExchange(t *testing.T) {
	c := s.newContextPair(t)
	c.server.onMessage = func(from *contexts.Connection, message []byte) {
		c.submitMessage(c.server, from, "reply to "+string(message))
	}
	task := c.submitMessage(c.client, c.atClient, "request")
	if task.Connection() != c.atClient {
		t.Error("the task belongs to another connection")
	}
	c.await("request and reply", func() bool {
		return len(c.server.messages) == 1 && len(c.client.messages) == 1 &&
			len(c.client.completions) == 1 && len(c.server.completions) == 1
	})
	if c.server.messages[0] != "request" || c.client.messages[0] != "reply to request" {
		t.Errorf("received %q and %q", c.server.messages, c.client.messages)
	}
	if c.server.senders[0] != c.atServer || c.client.senders[0] != c.atClient {
		t.Error("messages arrived on the wrong connections")
	}
	for _, x := range append(c.client.completions, c.server.completions...) {
		if x.err != nil {
			t.Errorf("send failed: %v", x.err)
		}
	}
	c.client.free(t)
	c.server.free(t)
}

func (s *suite) testControlOrder(t *testing.T) {
	c := s.newContextPair(t)
	const rounds = 50
	for round := range rounds {
		for i := range sendTasks {
			c.submitMessage(c.server, c.atServer, fmt.Sprint(round*sendTasks+i))
		}
		c.await("completions", func() bool { return len(c.server.completions) == sendTasks })
		c.server.free(t)
	}
	c.await("all messages", func() bool { return len(c.client.messages) == rounds*sendTasks })
	for i, message := range c.client.messages {
		if message != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, message)
		}
	}
}

func (s *suite) testManyClients(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	var pairs []*contextPair
	for range 5 {
		pairs = append(pairs, h.join(server))
	}
	for i, c := range pairs {
		c.submitMessage(c.client, c.atClient, fmt.Sprint("from ", i))
		c.submitMessage(server, c.atServer, fmt.Sprint("to ", i))
	}
	h.await("all messages", func() bool {
		received := len(server.messages)
		for _, c := range pairs {
			received += len(c.client.messages)
		}
		return received == 2*len(pairs) && len(server.completions) == len(pairs)
	})
	for i, c := range pairs {
		if len(c.client.messages) != 1 || c.client.messages[0] != fmt.Sprint("to ", i) {
			t.Errorf("client %d received %q", i, c.client.messages)
		}
		c.await("the client's completion", func() bool { return len(c.client.completions) == 1 })
		c.client.free(t)
	}
	for i, message := range server.messages {
		for k, c := range pairs {
			if server.senders[i] == c.atServer && message != fmt.Sprint("from ", k) {
				t.Errorf("client %d sent %q", k, message)
			}
		}
	}
	server.free(t)
}

// testNoProgress checks that only progress calls callbacks.
func (s *suite) testNoProgress(t *testing.T) {
	c := s.newContextPair(t)
	other := c.suite.newHarness(t)
	client := other.startClientOn(c.server.name, c.harness)
	atClient, err := client.Connection()
	c.must(err)
	other.submitMessage(client, atClient, "hello")
	other.await("the completion at the client", func() bool { return len(client.completions) == 1 })
	other.settle()
	if len(c.server.messages) != 0 {
		t.Error("the server received a message without making progress")
	}
	c.await("the message", func() bool { return len(c.server.messages) == 1 })
	client.free(t)
	c.must(client.Stop())
	other.awaitState(client, progress.Idle)
}

// startClientOn connects a client of this harness to a server of another.
func (h *harness) startClientOn(name string, other *harness) *recordingClient {
	h.t.Helper()
	client := h.newClient(name, nil)
	h.must(client.Start(h.engine))
	h.await("the connection", func() bool {
		other.engine.Progress()
		return client.State() == progress.Running
	})
	return client
}

func (s *suite) testForeignConnection(t *testing.T) {
	c := s.newContextPair(t)
	_, err := c.client.AllocateSend(c.atServer, nil)
	wantCode(t, "allocate a send on the server's connection for the client", err,
		status.InvalidValue)
	_, err = c.server.AllocateSend(nil, nil)
	wantCode(t, "allocate a send without connection", err, status.InvalidValue)
	wantCode(t, "disconnect another's connection", c.server.Disconnect(c.atClient),
		status.InvalidValue)
	wantCode(t, "disconnect nil", c.server.Disconnect(nil), status.InvalidValue)
}

func (s *suite) testSendToGonePeer(t *testing.T) {
	c := s.newContextPair(t)
	task, err := c.server.AllocateSend(c.atServer, []byte("too late"))
	c.must(err)
	c.must(c.client.Stop())
	c.await("the disconnection", func() bool { return len(c.server.events) == 2 })
	c.must(task.Submit())
	c.await("the failure", func() bool { return len(c.server.completions) == 1 })
	wantCode(t, "send to a client that is gone", c.server.completions[0].err, status.NotConnected)
	c.server.free(t)
	if got := c.server.State(); got != progress.Running {
		t.Errorf("a server that lost a client is %v", got)
	}
}

// testBlockingPeer connects a context with a peer that uses the blocking calls of the provider.
func (s *suite) testBlockingPeer(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	peer, err := s.Provider.Connect(testContext(t), s.ClientConfig(server.name))
	h.must(err)
	defer peer.Abort()
	h.must(peer.Send(testContext(t), []byte("plain")))
	h.await("the message", func() bool { return len(server.messages) == 1 })
	h.submitMessage(server, server.senders[0], "context")
	message, err := peer.Receive(testContext(t))
	h.must(err)
	if server.messages[0] != "plain" || string(message) != "context" {
		t.Errorf("received %q and %q", server.messages[0], message)
	}
	h.await("the completion", func() bool { return len(server.completions) == 1 })
	server.free(t)
}
