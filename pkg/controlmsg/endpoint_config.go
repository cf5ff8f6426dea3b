package controlmsg

import (
	"time"

	"go.uber.org/zap"
)

// DefaultTimeout bounds each wait of an endpoint unless configured otherwise.
const DefaultTimeout = 10 * time.Second

// EndpointConfig configures a Requester or a Responder. Role is required.
type EndpointConfig struct {
	// Codec is the native one if nil.
	Codec Codec
	// Role is this side's: with its being requester or responder it selects
	// the conversation.
	Role Role
	// Timeout bounds each wait: for the answer to a request, for the peer to
	// take a message, and for the next request while the peer sets up its
	// session. 0 means DefaultTimeout.
	Timeout time.Duration
	// KeepAlive watches over the peer. The zero value is for transports that
	// notice a lost peer by themselves, like Comch.
	KeepAlive KeepAliveConfig
	// Software is this side's name and version, told to the peer.
	Software string
	// Logger may be nil.
	Logger *zap.Logger
}

func (c EndpointConfig) withDefaults() EndpointConfig {
	if c.Codec == nil {
		c.Codec = NewProtobufCodec()
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Software == "" {
		c.Software = "zc-relay"
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.KeepAlive = c.KeepAlive.withDefaults()
	return c
}
