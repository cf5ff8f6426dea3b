// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// requester is the client's end of a conversation with a relay: a controlmsg.Requester, or a
// dialectRelay.
type requester interface {
	controlmsg.Caller
	Greet(ctx context.Context) (controlmsg.HelloReply, error)
}

// dialectRelay is a conversation with a relay of the DOCA storage applications.
type dialectRelay struct {
	*dialects.Requester
	connection comch.Connection
	version    dialects.Version
	size       uint64 // of the storage in bytes; 0 if the relay tells it
}

func newDialectRelay(config *Config, connection comch.Connection) *dialectRelay {
	r := &dialectRelay{connection: connection, version: config.Protocol}
	if r.version == dialects.DOCA2_10 {
		r.size = config.MemorySize
	}
	r.Requester = dialects.NewRequester(controlmsg.NewComchTransport(connection),
		dialects.RequesterConfig{Version: r.version, Timeout: config.ControlTimeout,
			AwaitConsumers: r.awaitConsumers})
	return r
}

// Greet returns what is known of the relay without asking: the protocol has no greeting.
func (r *dialectRelay) Greet(context.Context) (controlmsg.HelloReply, error) {
	return controlmsg.HelloReply{Software: r.version.String() + " relay"}, nil
}

// Call adds to Requester.Call the size of a storage of 2.10: that of the memory.
func (r *dialectRelay) Call(
	ctx context.Context, request controlmsg.Message,
) (controlmsg.Message, error) {
	reply, err := r.Requester.Call(ctx, request)
	if volume, ok := reply.(*controlmsg.OpenVolumeReply); ok && err == nil && r.size > 0 {
		volume.Size = r.size
	}
	return reply, err
}

// awaitConsumers returns the relay's consumers in the order of their appearance, in which it pairs
// them with the client's.
func (r *dialectRelay) awaitConsumers(
	ctx context.Context, count int,
) (ids []uint32, err error) {
	for len(ids) < count {
		event, err := r.connection.NextConsumerEvent(ctx)
		if err != nil {
			return nil, status.Errorf(status.CodeOf(err), "wait for the relay's consumers, of "+
				"which %d of %d are there: %w", len(ids), count, err)
		}
		if !event.Created {
			return nil, status.Errorf(status.Unexpected, "the relay has destroyed consumer %d",
				event.ID)
		}
		ids = append(ids, uint32(event.ID))
	}
	return ids, nil
}

// checkProtocol returns an error if the configuration asks for what the relay's protocol does not
// have.
func (c *Config) checkProtocol() error {
	if c.Protocol == dialects.None {
		return nil
	}
	for what, isAsked := range map[string]bool{
		"exclusive volumes (Exclusive)":          c.Exclusive,
		"holders to preempt (Preempt)":           c.Preempt != "",
		"volumes opened for reading (ReadOnly)":  c.ReadOnly,
		"sessions that continue one (Reconnect)": c.Reconnect != nil,
		"traces (Tracer)":                        c.Tracer != nil && c.TraceEvery > 0,
	} {
		if isAsked {
			return status.Errorf(status.NotSupported, "the relay's protocol %v has no %s",
				c.Protocol, what)
		}
	}
	if c.Protocol != dialects.DOCA2_10 {
		return nil
	}
	// Its storage mirrors the client's memory, of which every queue has a part.
	size := uint64(c.Queues) * uint64(c.Depth) * uint64(c.BufferSize)
	switch {
	case c.SyncDepth > 0:
		return status.Errorf(status.NotSupported, "in the relay's protocol %v, a block has the "+
			"same place in the volume and in the client's memory: blocking methods, which have "+
			"memory of their own, cannot be used (set SyncDepth to a negative value)", c.Protocol)
	case c.MemorySize != size:
		return status.Errorf(status.InvalidValue, "in the relay's protocol %v, the memory consists "+
			"of the buffers: MemorySize is %d bytes, must be %d", c.Protocol, c.MemorySize, size)
	}
	return nil
}
