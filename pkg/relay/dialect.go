// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dialectClient is the relay's side of a conversation with an initiator of the DOCA storage
// applications. It turns that initiator's requests into the ones of our own protocol, which the
// session carries out.
//
// The applications differ from us in three ways. Their initiators list no consumers: queues are
// paired in the order in which the consumers appear, after the reply to init_storage (3.x) or
// before start_data_path_connections (2.10). They do not say how large an IO may be (3.x), or how
// many queues there are (2.10). And they ignore the result of an IO.
type dialectClient struct {
	*dialects.Adapter
	dialectClientConfig
	volume *controlmsg.OpenVolumeReply // nil until the volume is open
	queues uint32                      // of the data path, once it is configured
}

type dialectClientConfig struct {
	session    dialectSession
	connection comch.Connection // to the initiator
	transport  controlmsg.Transport
	timeout    time.Duration // of each step of the handshake
	log        *zap.Logger
}

// dialectSession is what a dialectClient needs of its session.
type dialectSession interface {
	controlmsg.Handler
	// translate lets a translator change the client's IO messages.
	translate(by datapath.Translator)
	drain(ctx context.Context) (unfinished int)
	stopTarget(ctx context.Context) error
	releaseMemory(ctx context.Context) error
	openLanes() []*datapath.RelayLane
}

func newDialectClient(
	config dialectClientConfig, v dialects.Version, isGuessed bool,
) *dialectClient {
	c := &dialectClient{dialectClientConfig: config}
	c.Adapter = dialects.NewAdapter(dialects.AdapterConfig{
		ResponderConfig: dialects.ResponderConfig{
			Handler: c, Version: v, IsGuessed: isGuessed,
			Setting: "the channel's protocol to the initiator's", Timeout: c.timeout,
		},
		Transport: c.transport, Drain: c.session.drain, Stop: c.session.stopTarget, Logger: c.log,
	})
	return c
}

// QueryStorage opens the volume.
func (c *dialectClient) QueryStorage(ctx context.Context) (*dialects.QueryStorageReply, error) {
	volume, err := c.session.OpenVolume(ctx, &controlmsg.OpenVolume{})
	if err != nil {
		return nil, err
	}
	c.volume = volume
	return &dialects.QueryStorageReply{TotalSize: volume.Size, BlockSize: volume.BlockSize}, nil
}

// InitStorage opens the volume if that has not been done, and configures the data path.
func (c *dialectClient) InitStorage(ctx context.Context, m *dialects.InitStorage) error {
	c.log.Info("the client is a DOCA storage application",
		zap.Stringer("protocol", c.Version()))
	if c.volume == nil {
		if _, err := c.QueryStorage(ctx); err != nil {
			return err
		}
	}
	memory, err := c.describeMemory(m)
	if err != nil {
		return err
	}
	return c.Configure(m, memory, c.volume, func(request *controlmsg.ConfigureDataPath) error {
		_, err := c.session.ConfigureDataPath(ctx, request)
		c.queues = request.QueueCount
		return err
	})
}

// describeMemory imports the initiator's memory to learn its size and address.
func (c *dialectClient) describeMemory(m *dialects.InitStorage) (controlmsg.Export, error) {
	region, access, err := c.connection.ImportMemory(m.Export)
	if err != nil {
		return controlmsg.Export{}, fmt.Errorf("import the client's memory: %w", err)
	}
	length, base := region.Len(), region.Base()
	if err := region.Close(); err != nil {
		return controlmsg.Export{}, err
	}
	c.session.translate(dialects.NewInitiatorTranslator(c.Version(), base))
	return controlmsg.Export{Access: access, Length: length, Descriptor: m.Export}, nil
}

// CreateConnection is for targets.
func (c *dialectClient) CreateConnection(
	context.Context, *dialects.CreateConnection,
) ([]byte, error) {
	return nil, status.Errorf(status.NotSupported, "a relay has no RDMA connections to clients")
}

// StartConnections waits for the initiator's consumers, and opens a queue for each in the order of
// their appearance, in which initiators also expect the relay's.
func (c *dialectClient) StartConnections(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request := &controlmsg.StartDataPathConnections{}
	for uint32(len(request.ConsumerIDs)) < c.queues {
		event, err := c.connection.NextConsumerEvent(waiting)
		if err != nil {
			return fmt.Errorf("wait for the initiator's consumers, of which %d of %d are there: %w",
				len(request.ConsumerIDs), c.queues, err)
		}
		if !event.Created {
			return status.Errorf(status.Unexpected, "the initiator has destroyed consumer %d",
				event.ID)
		}
		request.ConsumerIDs = append(request.ConsumerIDs, uint32(event.ID))
	}
	_, err := c.session.StartDataPathConnections(ctx, request)
	return err
}

// StartStorage starts the data path.
func (c *dialectClient) StartStorage(ctx context.Context) error {
	return c.session.StartStorage(ctx)
}

// Stopped returns a channel that is closed when the stop message of 2.10 has been returned, which
// initiators send on the first queue, or nil if the session has no queues.
func (c *dialectClient) Stopped() <-chan struct{} {
	lanes := c.session.openLanes()
	if len(lanes) == 0 {
		return nil
	}
	return lanes[0].Stopped()
}

// Shutdown also releases the initiator's memory, which it frees after the reply.
func (c *dialectClient) Shutdown(ctx context.Context) (done bool, err error) {
	done, err = c.session.DestroyObjects(ctx)
	if err == nil {
		err = c.session.releaseMemory(ctx)
	}
	return done, err
}

// Done returns a channel that is closed when the connection to the initiator has ended.
func (c *dialectClient) Done() <-chan struct{} { return c.connection.Done() }

// Err returns why the connection has ended, or nil if it has not.
func (c *dialectClient) Err() error { return c.connection.Err() }

// dialectCloseTimeout is how long an initiator that has shut down may take to close.
const dialectCloseTimeout = time.Second

// Close closes the connection. The protocol has no message for the reason.
func (c *dialectClient) Close(reason error) {
	if reason == nil {
		select {
		case <-c.Done():
		case <-time.After(dialectCloseTimeout):
		}
	}
	if err := c.transport.Close(); err != nil {
		c.log.Debug("close the connection to the client", zap.Error(err))
	}
}
