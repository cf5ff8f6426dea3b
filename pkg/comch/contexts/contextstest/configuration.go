// SPDX-License-Identifier: Apache-2.0

package contextstest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testContextConfiguration(t *testing.T) {
	t.Run("NamesAreChecked", s.testContextNames)
	t.Run("ServersNeedTheirCallbacks", s.testServerConfiguration)
	t.Run("ClientsNeedTheirCallbacks", s.testClientConfiguration)
	t.Run("ConsumersNeedTheirCallbacks", s.testConsumerConfiguration)
	t.Run("ProducersNeedTheirCallbacks", s.testProducerConfiguration)
	t.Run("StartNeedsConfigurationAndEngine", s.testStartNeeds)
	t.Run("MessageSizeIsTheDevicesMaximumByDefault", s.testDefaultMessageSize)
	t.Run("MessageSizesHaveToAgree", s.testMessageSizes)
	t.Run("ReceiveQueueIsWhatWasSet", s.testReceiveQueue)
	t.Run("ImmediateLengthIsWhatWasSet", s.testImmediateLength)
	t.Run("FastPathNeedsConsumerCallbacks", s.testFastPathNeedsCallbacks)
}

func (s *suite) testContextNames(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("n", s.Capabilities.MaxNameLength+1)} {
		_, err := contexts.NewServer(s.Provider, s.ServerDevice(), s.Representor, name)
		wantCode(t, "create server "+name, err, status.InvalidValue)
		_, err = contexts.NewClient(s.Provider, s.ClientDevice(), name)
		wantCode(t, "create client of "+name, err, status.InvalidValue)
	}
	h := s.newHarness(t)
	first := h.startServer(nil)
	second, err := contexts.NewServer(s.Provider, s.ServerDevice(), s.Representor, first.name)
	h.must(err)
	h.must(second.Configure(first.serverConfig()))
	wantCode(t, "start a second server of one name", second.Start(h.engine), status.AlreadyExist)
	if got := second.State(); got != progress.Idle {
		t.Errorf("server that could not start is %v", got)
	}
}

// without removes something from a configuration.
type without[T any] struct {
	what  string
	spoil func(*T)
}

func (s *suite) spoiledControl() []without[contexts.ControlConfig] {
	return []without[contexts.ControlConfig]{
		{"send callback", func(c *contexts.ControlConfig) { c.SendCompleted = nil }},
		{"send error callback", func(c *contexts.ControlConfig) { c.SendFailed = nil }},
		{"receive callback", func(c *contexts.ControlConfig) { c.MessageReceived = nil }},
		{"one consumer callback", func(c *contexts.ControlConfig) { c.ConsumerExpired = nil }},
		{"send tasks", func(c *contexts.ControlConfig) { c.SendTasks = 0 }},
		{"possible send tasks",
			func(c *contexts.ControlConfig) { c.SendTasks = s.Capabilities.MaxSendTasks + 1 }},
		{"possible message size",
			func(c *contexts.ControlConfig) {
				c.MaxMessageSize = s.Capabilities.MaxMessageSize + 1
			}},
		{"positive message size", func(c *contexts.ControlConfig) { c.MaxMessageSize = -1 }},
		{"possible receive queue",
			func(c *contexts.ControlConfig) {
				c.ReceiveQueue = s.Capabilities.MaxReceiveQueue + 1
			}},
	}
}

func (s *suite) testServerConfiguration(t *testing.T) {
	server, err := contexts.NewServer(s.Provider, s.ServerDevice(), s.Representor,
		comchtest.NewName())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.spoiledControl() {
		config := new(recorder).serverConfig()
		c.spoil(&config.ControlConfig)
		wantCode(t, "configure server without "+c.what, server.Configure(config),
			status.InvalidValue)
	}
	for _, c := range []without[contexts.ServerConfig]{
		{"connection callback", func(c *contexts.ServerConfig) { c.Connected = nil }},
		{"disconnection callback", func(c *contexts.ServerConfig) { c.Disconnected = nil }},
		{"possible number of clients",
			func(c *contexts.ServerConfig) { c.MaxClients = s.Capabilities.MaxClients + 1 }},
	} {
		config := new(recorder).serverConfig()
		c.spoil(&config)
		wantCode(t, "configure server without "+c.what, server.Configure(config),
			status.InvalidValue)
	}
}

func (s *suite) testClientConfiguration(t *testing.T) {
	client, err := contexts.NewClient(s.Provider, s.ClientDevice(), comchtest.NewName())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.spoiledControl() {
		config := contexts.ClientConfig{ControlConfig: new(recorder).controlConfig()}
		c.spoil(&config.ControlConfig)
		wantCode(t, "configure client without "+c.what, client.Configure(config),
			status.InvalidValue)
	}
}

func (s *suite) testConsumerConfiguration(t *testing.T) {
	c := s.newContextPair(t)
	for _, size := range []int{0, -1, s.Capabilities.MaxMemorySize + 1} {
		_, err := contexts.NewConsumer(c.atClient, size)
		wantCode(t, "create a consumer with impossible memory", err, status.InvalidValue)
	}
	r := c.newReceiver(c.atClient)
	for _, x := range []without[contexts.ConsumerConfig]{
		{"receive callback", func(c *contexts.ConsumerConfig) { c.Received = nil }},
		{"receive error callback", func(c *contexts.ConsumerConfig) { c.Failed = nil }},
		{"tasks", func(c *contexts.ConsumerConfig) { c.ReceiveTasks = 0 }},
		{"possible tasks",
			func(c *contexts.ConsumerConfig) { c.ReceiveTasks = s.Capabilities.MaxReceives + 1 }},
		{"possible immediate data",
			func(c *contexts.ConsumerConfig) {
				c.ImmediateLength = s.Capabilities.MaxImmediateLength + 1
			}},
	} {
		config := r.config()
		x.spoil(&config)
		wantCode(t, "configure consumer without "+x.what, r.Configure(config), status.InvalidValue)
	}
}

func (s *suite) testProducerConfiguration(t *testing.T) {
	c := s.newContextPair(t)
	p := c.newTransmitter(c.atClient)
	for _, x := range []without[contexts.ProducerConfig]{
		{"send callback", func(c *contexts.ProducerConfig) { c.Sent = nil }},
		{"send error callback", func(c *contexts.ProducerConfig) { c.Failed = nil }},
		{"tasks", func(c *contexts.ProducerConfig) { c.SendTasks = 0 }},
		{"possible tasks",
			func(c *contexts.ProducerConfig) { c.SendTasks = s.Capabilities.MaxSendTasks + 1 }},
	} {
		config := p.config()
		x.spoil(&config)
		wantCode(t, "configure producer without "+x.what, p.Configure(config), status.InvalidValue)
	}
}

func (s *suite) testStartNeeds(t *testing.T) {
	c := s.newContextPair(t)
	server, err := contexts.NewServer(s.Provider, s.ServerDevice(), s.Representor,
		comchtest.NewName())
	c.must(err)
	client, err := contexts.NewClient(s.Provider, s.ClientDevice(), comchtest.NewName())
	c.must(err)
	consumer, err := contexts.NewConsumer(c.atClient, memorySize)
	c.must(err)
	producer, err := contexts.NewProducer(c.atClient)
	c.must(err)
	for what, context := range map[string]interface {
		Start(*progress.Engine) error
		State() progress.State
	}{"server": server, "client": client, "consumer": consumer, "producer": producer} {
		wantCode(t, "start a "+what+" that is not configured", context.Start(c.engine),
			status.Initialization)
		if got := context.State(); got != progress.Idle {
			t.Errorf("%s that could not start is %v", what, got)
		}
	}
	wantCode(t, "start a server without engine", c.newServer(nil).Start(nil), status.NotConnected)
	wantCode(t, "start a client without engine", c.newClient(comchtest.NewName(), nil).Start(nil),
		status.NotConnected)
	wantCode(t, "start a consumer without engine", c.newReceiver(c.atClient).Start(nil),
		status.NotConnected)
	wantCode(t, "start a producer without engine", c.newTransmitter(c.atClient).Start(nil),
		status.NotConnected)
}

func (s *suite) testDefaultMessageSize(t *testing.T) {
	c := s.newContextPair(t)
	longest := string(bytes.Repeat([]byte{'m'}, s.Capabilities.MaxMessageSize))
	c.submitMessage(c.client, c.atClient, longest)
	c.submitMessage(c.server, c.atServer, longest)
	c.await("both messages", func() bool {
		return len(c.server.messages) == 1 &&
			len(c.client.messages) == 1
	})
	if c.server.messages[0] != longest || c.client.messages[0] != longest {
		t.Error("the longest message arrived changed")
	}
	_, err := c.client.AllocateSend(c.atClient, []byte(longest+"m"))
	wantCode(t, "allocate too long a message", err, status.TooBig)
	c.await("both completions", func() bool {
		return len(c.server.completions) == 1 &&
			len(c.client.completions) == 1
	})
	c.server.free(t)
	c.client.free(t)
}

func (s *suite) testMessageSizes(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(func(c *contexts.ServerConfig) { c.MaxMessageSize = 100 })
	other := h.newClient(server.name, func(c *contexts.ClientConfig) { c.MaxMessageSize = 101 })
	h.must(other.Start(h.engine))
	h.awaitState(other, progress.Idle)
	s.WantRejection(t, "why a client of another message size did not start", other.Err(),
		status.InvalidValue)
	same := h.newClient(server.name, func(c *contexts.ClientConfig) { c.MaxMessageSize = 100 })
	h.must(same.Start(h.engine))
	h.awaitState(same, progress.Running)
	atClient, err := same.Connection()
	h.must(err)
	_, err = same.AllocateSend(atClient, make([]byte, 101))
	wantCode(t, "allocate a message beyond the size that was set", err, status.TooBig)
}

// testReceiveQueue sends more messages at once than the server's queue of two holds.
func (s *suite) testReceiveQueue(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(func(c *contexts.ServerConfig) { c.ReceiveQueue = 2 })
	c := h.join(server)
	seen := 0
	server.onMessage = func(*contexts.Connection, []byte) { seen++ }
	for range sendTasks {
		c.submitMessage(c.client, c.atClient, "queued")
	}
	c.await("all messages", func() bool {
		return seen == sendTasks &&
			len(c.client.completions) == sendTasks
	})
	for _, x := range c.client.completions {
		if x.err != nil {
			t.Errorf("message failed: %v", x.err)
		}
	}
	c.client.free(t)
}

func (s *suite) testImmediateLength(t *testing.T) {
	c := s.newContextPair(t)
	r := c.newReceiver(c.atServer)
	config := r.config()
	config.ImmediateLength = 4
	c.must(r.Configure(config))
	c.must(r.Start(c.engine))
	c.awaitState(r, progress.Running)
	l := &link{harness: c.harness, receiver: r, transmitter: c.startTransmitter(c.atClient)}
	l.post(0, 0)
	l.send("", "12345")
	l.awaitOutcomes(0, 0, 0, 1)
	wantCode(t, "more immediate data than the consumer allows", l.transmitter.errs[0],
		status.InvalidValue)
	l.send("", "1234")
	l.awaitOutcomes(1, 0, 1, 1)
	if got := string(l.receiver.received[0].Immediate()); got != "1234" {
		t.Errorf("received immediate data %q", got)
	}
	l.free()
}

func (s *suite) testFastPathNeedsCallbacks(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	client := h.newClient(server.name,
		func(c *contexts.ClientConfig) { c.ConsumerCreated, c.ConsumerExpired = nil, nil })
	h.must(client.Start(h.engine))
	h.awaitState(client, progress.Running)
	atClient, err := client.Connection()
	h.must(err)
	wantCode(t, "start a consumer", h.newReceiver(atClient).Start(h.engine), status.Initialization)
	wantCode(t, "start a producer", h.newTransmitter(atClient).Start(h.engine),
		status.Initialization)
	h.await("the connection event", func() bool { return len(server.events) == 1 })
	h.startReceiver(server.events[0].connection)
	h.settle() // the client ignores the consumer event
	if client.State() != progress.Running || len(client.consumers) != 0 {
		t.Errorf("client is %v and saw %d consumer events", client.State(), len(client.consumers))
	}
}
