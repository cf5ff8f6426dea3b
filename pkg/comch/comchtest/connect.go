package comchtest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testProvider(t *testing.T) {
	t.Run("HasAName", func(t *testing.T) {
		if s.Provider.Name() == "" {
			t.Error("the provider has no name")
		}
	})
	t.Run("CapabilitiesAreUsable", func(t *testing.T) {
		c := s.capabilities
		if !c.Server || !c.Client || !c.Consumer || !c.Producer {
			t.Errorf("the device cannot do everything: %+v", c)
		}
		for what, value := range map[string]int{
			"MaxNameLength": c.MaxNameLength, "MaxMessageSize": c.MaxMessageSize, "MaxReceiveQueue": c.MaxReceiveQueue,
			"MaxClients": c.MaxClients, "MaxConsumers": c.MaxConsumers, "MaxReceives": c.MaxReceives, "MaxMemorySize": c.MaxMemorySize,
			"MaxSendTasks": c.MaxSendTasks, "MaxBufferLength": c.MaxBufferLength,
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

func (s *suite) testServer(t *testing.T) {
	t.Run("NameIsUniqueUntilClosed", func(t *testing.T) {
		config := s.serverConfig()
		first := s.listen(t, config)
		_, err := s.Provider.Listen(testContext(t), config)
		wantCode(t, "listen under a taken name", err, status.AlreadyExist)
		closeAll(t, first)
		closeAll(t, s.listen(t, config))
	})
	t.Run("SeveralNamesLiveSideBySide", func(t *testing.T) {
		first, second := s.serverConfig(), s.serverConfig()
		firstServer, secondServer := s.listen(t, first), s.listen(t, second)
		s.join(t, secondServer, second)
		s.join(t, firstServer, first)
	})
	t.Run("LongestNameIsUsable", func(t *testing.T) {
		config := s.serverConfig()
		config.Name += strings.Repeat("n", s.capabilities.MaxNameLength-len(config.Name))
		s.connectWith(t, config)
	})
	t.Run("BadNamesAreRefused", s.testBadNames)
	t.Run("AcceptEndsWithItsContext", func(t *testing.T) {
		server := s.listen(t, s.serverConfig())
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if _, err := server.Accept(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
	t.Run("CloseEndsAccept", func(t *testing.T) {
		server := s.listen(t, s.serverConfig())
		failed := make(chan error, 1)
		go func() {
			_, err := server.Accept(context.Background())
			failed <- err
		}()
		closeAll(t, server)
		wantCode(t, "accept on a closed server", <-failed, status.Shutdown)
	})
	t.Run("ConnectionsOutliveTheServer", func(t *testing.T) {
		config := s.serverConfig()
		server := s.listen(t, config)
		p := s.join(t, server, config)
		closeAll(t, server)
		exchange(t, p.client, p.server, "still here")
		exchange(t, p.server, p.client, "so am I")
	})
	t.Run("AddressIsNotEmpty", func(t *testing.T) {
		if server := s.listen(t, s.serverConfig()); server.Address() == "" {
			t.Error("no address")
		}
	})
}

func (s *suite) testBadNames(t *testing.T) {
	tooLong := strings.Repeat("n", s.capabilities.MaxNameLength+1)
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b", tooLong} {
		config := s.serverConfig()
		config.Name = name
		_, err := s.Provider.Listen(testContext(t), config)
		wantCode(t, "listen as "+name, err, status.InvalidValue)
		_, err = s.Provider.Connect(testContext(t), s.clientConfig(name))
		wantCode(t, "connect to "+name, err, status.InvalidValue)
	}
}

func (s *suite) testConnect(t *testing.T) {
	t.Run("MissingServerIsNotFound", func(t *testing.T) {
		_, err := s.Provider.Connect(testContext(t), s.clientConfig(newName()))
		wantCode(t, "connect to nobody", err, status.NotFound)
	})
	t.Run("ClosedServerIsNotFound", func(t *testing.T) {
		config := s.serverConfig()
		closeAll(t, s.listen(t, config))
		_, err := s.Provider.Connect(testContext(t), s.clientConfig(config.Name))
		wantCode(t, "connect to a closed server", err, status.NotFound)
	})
	t.Run("PeersKnowEachOther", func(t *testing.T) {
		p := s.connect(t)
		want := comch.Peer{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
		if got := p.server.Peer(); got != want {
			t.Errorf("server's peer is %+v, want %+v", got, want)
		}
		if got := p.client.Peer(); got != want {
			t.Errorf("client's peer is %+v, want %+v", got, want)
		}
	})
	t.Run("MessageSizesHaveToAgree", func(t *testing.T) {
		config := s.serverConfig()
		config.MaxMessageSize = s.capabilities.MaxMessageSize / 2
		server := s.listen(t, config)
		_, err := s.Provider.Connect(testContext(t), s.clientConfig(config.Name))
		wantCode(t, "connect with another message size", err, status.InvalidValue)
		p := s.join(t, server, config)
		if p.client.MaxMessageSize() != config.MaxMessageSize || p.server.MaxMessageSize() != config.MaxMessageSize {
			t.Errorf("agreed on %d and %d bytes, want %d", p.client.MaxMessageSize(), p.server.MaxMessageSize(), config.MaxMessageSize)
		}
	})
	t.Run("TooManyClientsAreTurnedAwayUntilOneLeaves", s.testFullServer)
	t.Run("ConnectEndsWithItsContext", func(t *testing.T) {
		config := s.serverConfig()
		s.listen(t, config)
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if _, err := s.Provider.Connect(ctx, s.clientConfig(config.Name)); err == nil {
			t.Error("connected although the context had ended")
		}
	})
	t.Run("ImpossibleLimitsAreRefused", func(t *testing.T) {
		config := s.serverConfig()
		config.MaxMessageSize = s.capabilities.MaxMessageSize + 1
		_, err := s.Provider.Listen(testContext(t), config)
		wantCode(t, "listen with too large messages", err, status.InvalidValue)
		client := s.clientConfig(newName())
		client.ReceiveQueue = -1
		_, err = s.Provider.Connect(testContext(t), client)
		wantCode(t, "connect with a negative receive queue", err, status.InvalidValue)
	})
	if s.OtherDevice != "" {
		t.Run("TwoServersOfOneNameAreAnError", func(t *testing.T) {
			config := s.serverConfig()
			s.listen(t, config)
			other := config
			other.Device = s.OtherDevice
			second := s.listen(t, other)
			_, err := s.Provider.Connect(testContext(t), s.clientConfig(config.Name))
			wantCode(t, "connect to an ambiguous name", err, status.InvalidValue)
			closeAll(t, second)
			if _, err := s.Provider.Connect(testContext(t), s.clientConfig(config.Name)); err != nil {
				t.Errorf("connect after one of them is gone: %v", err)
			}
		})
	}
}

func (s *suite) testFullServer(t *testing.T) {
	config := s.serverConfig()
	config.MaxClients = 2
	refused := make(chan error, 1)
	config.Refused = func(_ comch.Peer, reason error) { refused <- reason }
	server := s.listen(t, config)
	first := s.join(t, server, config)
	s.join(t, server, config)
	_, err := s.Provider.Connect(testContext(t), s.clientConfig(config.Name))
	wantCode(t, "connect one client too many", err, status.Full)
	wantCode(t, "reason the server was told", <-refused, status.Full)
	closeAll(t, first.client)
	awaitDone(t, first.server)
	s.join(t, server, config)
}
