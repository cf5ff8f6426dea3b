package comchtest

import (
	"fmt"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testContextMessages(t *testing.T) {
	t.Run("CompletedSendsAreReceived", s.testControlExchange)
	t.Run("ArriveInOrder", s.testControlOrder)
	t.Run("OfManyClientsDoNotMix", s.testManyClients)
	t.Run("NothingHappensWithoutProgress", s.testNoProgress)
	t.Run("NeedAConnectionOfTheirOwn", s.testForeignConnection)
	t.Run("FailWhenThePeerIsGone", s.testSendToGonePeer)
	t.Run("SpeakToBlockingPeers", s.testBlockingPeer)
}

// testControlExchange is the guide's control path sample: the client sends
// when it is connected, the server answers in its callback.
func (s *suite) testControlExchange(t *testing.T) {
	c := s.newCouple(t)
	c.server.onMessage = func(from *contexts.Connection, message []byte) {
		c.submitMessage(c.server, from, "answer to "+string(message))
	}
	task := c.submitMessage(c.client, c.atHost, "question")
	if task.Connection() != c.atHost {
		t.Error("the task is for another connection")
	}
	c.await("question and answer", func() bool {
		return len(c.server.messages) == 1 && len(c.client.messages) == 1 && len(c.client.completions) == 1 && len(c.server.completions) == 1
	})
	if c.server.messages[0] != "question" || c.client.messages[0] != "answer to question" {
		t.Errorf("received %q and %q", c.server.messages, c.client.messages)
	}
	if c.server.senders[0] != c.atServer || c.client.senders[0] != c.atHost {
		t.Error("messages came on the wrong connections")
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
	c := s.newCouple(t)
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
	stage := s.newStage(t)
	server := stage.startServer(nil)
	var couples []*couple
	for range 5 {
		couples = append(couples, stage.join(server))
	}
	for i, c := range couples {
		c.submitMessage(c.client, c.atHost, fmt.Sprint("from ", i))
		c.submitMessage(server, c.atServer, fmt.Sprint("to ", i))
	}
	stage.await("all messages", func() bool {
		received := len(server.messages)
		for _, c := range couples {
			received += len(c.client.messages)
		}
		return received == 2*len(couples) && len(server.completions) == len(couples)
	})
	for i, c := range couples {
		if len(c.client.messages) != 1 || c.client.messages[0] != fmt.Sprint("to ", i) {
			t.Errorf("client %d received %q", i, c.client.messages)
		}
		c.await("the client's completion", func() bool { return len(c.client.completions) == 1 })
		c.client.free(t)
	}
	for i, message := range server.messages {
		for k, c := range couples {
			if server.senders[i] == c.atServer && message != fmt.Sprint("from ", k) {
				t.Errorf("client %d sent %q", k, message)
			}
		}
	}
	server.free(t)
}

// testNoProgress shows that callbacks come from progress only.
func (s *suite) testNoProgress(t *testing.T) {
	c := s.newCouple(t)
	other := c.suite.newStage(t)
	client := other.startClientOn(c.server.name, c.stage)
	atHost, err := client.Connection()
	c.must(err)
	other.submitMessage(client, atHost, "hello")
	other.await("the completion at the client", func() bool { return len(client.completions) == 1 })
	other.settle()
	if len(c.server.messages) != 0 {
		t.Error("the server was told of a message without making progress")
	}
	c.await("the message", func() bool { return len(c.server.messages) == 1 })
	client.free(t)
	c.must(client.Stop())
	other.awaitState(client, progress.Idle)
}

// startClientOn connects a client of this stage to a server of another.
func (s *stage) startClientOn(name string, other *stage) *clientParty {
	s.t.Helper()
	client := s.newClient(name, nil)
	s.must(client.Start(s.engine))
	s.await("the connection", func() bool {
		other.engine.Progress()
		return client.State() == progress.Running
	})
	return client
}

func (s *suite) testForeignConnection(t *testing.T) {
	c := s.newCouple(t)
	_, err := c.client.AllocateSend(c.atServer, nil)
	wantCode(t, "allocate a send on the server's connection for the client", err, status.InvalidValue)
	_, err = c.server.AllocateSend(nil, nil)
	wantCode(t, "allocate a send without connection", err, status.InvalidValue)
	wantCode(t, "disconnect another's connection", c.server.Disconnect(c.atHost), status.InvalidValue)
	wantCode(t, "disconnect nobody", c.server.Disconnect(nil), status.InvalidValue)
}

func (s *suite) testSendToGonePeer(t *testing.T) {
	c := s.newCouple(t)
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

// testBlockingPeer has a context talk to the provider's own calls.
func (s *suite) testBlockingPeer(t *testing.T) {
	stage := s.newStage(t)
	server := stage.startServer(nil)
	peer, err := s.Provider.Connect(testContext(t), s.clientConfig(server.name))
	stage.must(err)
	defer peer.Abort()
	stage.must(peer.Send(testContext(t), []byte("plain")))
	stage.await("the message", func() bool { return len(server.messages) == 1 })
	stage.submitMessage(server, server.senders[0], "context")
	message, err := peer.Receive(testContext(t))
	stage.must(err)
	if server.messages[0] != "plain" || string(message) != "context" {
		t.Errorf("received %q and %q", server.messages[0], message)
	}
	stage.await("the completion", func() bool { return len(server.completions) == 1 })
	server.free(t)
}
