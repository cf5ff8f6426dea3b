// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts/contextstest"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// hardwareLike is a provider that tells no more than hardware does: it knows no peers and no
// reasons for rejections. With hooks, its producers are late, too.
type hardwareLike struct{ comch.Provider }

func (p hardwareLike) Capabilities(device string) (comch.Capabilities, error) {
	c, err := p.Provider.Capabilities(device)
	c.PeerCredentials, c.RejectionReasons, c.MsgQ = false, false, false
	return c, err
}

func (p hardwareLike) Listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	if len(config.AllowUsers) > 0 {
		return nil, status.Errorf(status.InvalidValue, "this provider cannot tell users")
	}
	config.Refused = nil
	inner, err := p.Provider.Listen(ctx, config)
	return hardwareServer{inner}, err
}

func (p hardwareLike) Connect(ctx context.Context, config comch.ClientConfig) (comch.Connection,
	error) {
	inner, err := p.Provider.Connect(ctx, config)
	var code status.Code
	if errors.As(err, &code) && code == status.Full {
		return nil, fmt.Errorf("%w: %v", status.ConnectionReset, err)
	}
	if err != nil {
		return nil, err
	}
	return &stranger{Connection: inner}, nil
}

type hardwareServer struct{ comch.Server }

func (s hardwareServer) Accept(ctx context.Context) (comch.Connection, error) {
	inner, err := s.Server.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &stranger{Connection: inner}, nil
}

// stranger is a connection to an unknown process, which does not tell why it ends.
type stranger struct {
	comch.Connection
	closed atomic.Bool // by this side, before the peer
}

func (*stranger) Peer() comch.Peer { return comch.Peer{} }

func (s *stranger) Close() error {
	if s.Connection.Err() == nil {
		s.closed.Store(true)
	}
	return s.Connection.Close()
}

func (s *stranger) Err() error {
	err := s.Connection.Err()
	if errors.Is(err, status.Shutdown) && !s.closed.Load() {
		return fmt.Errorf("%w: %v", status.ConnectionReset, err)
	}
	return err
}

// The part of the suite that is meant for hardware asks for nothing that hardware cannot do.
func TestTheSuiteAcceptsWhatHardwareCanDo(t *testing.T) {
	testkit.OnlyComplete(t, "the suite runs over the emulation of libdoca")
	injector, _ := faulttest.New(t, "comch:producer.complete:trace", "comch:consumer.post:trace")
	config := comchtest.Config{Provider: hardwareLike{wrap(t, injector)},
		ExportNeedsDescriptor: true,
		Groups: []string{"Provider", "Server", "Connect", "Consumers", "DataPath", "Wait", "Ending",
			"Memory", "ContextConnections", "ContextFastPath", "ContextEnding", "MsgQ"},
	}
	comchtest.Run(t, config)
	contextstest.Run(t, config)
}
