// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dialectRelay is the target's side of a conversation with a relay of the DOCA storage
// applications. It turns that relay's requests into the ones of our own protocol, which the session
// carries out.
//
// The applications differ from us in two ways. They name no volume, so the target must have just
// one. And they export the initiator's memory as a whole, and connect RDMA by details.
type dialectRelay struct {
	*dialects.Adapter
	session   *session
	transport controlmsg.Transport
	// connected holds the RDMA connections that the relay has asked for, by queue and role.
	connected [][iomsg.ConnectionRoleCount]bool
	requested uint32 // connections so far
}

func newDialectRelay(
	s *session, transport controlmsg.Transport, v dialects.Version,
) *dialectRelay {
	config := &s.target.config
	r := &dialectRelay{session: s, transport: transport}
	r.Adapter = dialects.NewAdapter(dialects.AdapterConfig{
		ResponderConfig: dialects.ResponderConfig{
			Handler: r, Version: v, IsGuessed: config.DetectProtocol,
			Setting:  "listen.protocol to the relay's",
			IsTarget: true, Timeout: config.ControlTimeout,
		},
		Transport: transport, Drain: s.drain, Stop: s.Stop, Logger: s.log,
	})
	return r
}

// Done returns nil: only Serve notices the end of the connection.
func (r *dialectRelay) Done() <-chan struct{} { return nil }

// Err returns nil, because Done is never closed.
func (r *dialectRelay) Err() error { return nil }

// Close closes the connection.
func (r *dialectRelay) Close(error) {
	if err := r.transport.Close(); err != nil {
		r.session.log.Debug("close the connection to the relay", zap.Error(err))
	}
}

// QueryStorage opens the volume. The first request makes the connection a session.
func (r *dialectRelay) QueryStorage(ctx context.Context) (*dialects.QueryStorageReply, error) {
	if r.session.opening == nil {
		if err := r.session.begin(); err != nil {
			return nil, err
		}
	}
	name, err := r.session.target.offers.only()
	if err != nil {
		return nil, err
	}
	volume, err := r.session.OpenVolume(ctx, &controlmsg.OpenVolume{Volume: name})
	if err != nil {
		return nil, err
	}
	return &dialects.QueryStorageReply{TotalSize: volume.Size, BlockSize: volume.BlockSize}, nil
}

// InitStorage imports the initiator's memory, and creates the lanes.
func (r *dialectRelay) InitStorage(ctx context.Context, m *dialects.InitStorage) error {
	s := r.session
	s.log.Info("the relay is a DOCA storage application",
		zap.Stringer("protocol", r.Version()))
	if s.offer == nil {
		if _, err := r.QueryStorage(ctx); err != nil {
			return err
		}
	}
	volume := s.describeVolume(s.target.offers.accessOf(s))
	memory, err := r.importMemory(m)
	if err != nil {
		return err
	}
	if err := s.free(); err != nil { // each attempt to configure imports it again
		return err
	}
	export := controlmsg.Export{Access: memory.Access, Length: memory.Length,
		RDMA: &controlmsg.RDMAExport{Transport: volume.Transport, Base: memory.Base}}
	return r.Configure(m, export, volume, func(request *controlmsg.ConfigureDataPath) error {
		memory, err := r.importMemory(m)
		if err != nil {
			return err
		}
		request.Export.RDMA.Key = memory.Key
		if _, err = s.ConfigureDataPath(ctx, request); err != nil {
			return errors.Join(err, s.free())
		}
		// Only now is the number of queues known to be within its limit.
		r.connected = make([][iomsg.ConnectionRoleCount]bool, request.QueueCount)
		return nil
	})
}

// importMemory makes the initiator's memory usable in a protection domain of the session.
func (r *dialectRelay) importMemory(m *dialects.InitStorage) (rdma.RemoteMemory, error) {
	s := r.session
	domain, err := s.target.device.NewProtectionDomain()
	if err != nil {
		return rdma.RemoteMemory{}, fmt.Errorf("create a protection domain: %w", err)
	}
	s.domain = domain
	importing, ok := domain.(rdma.ImportingDomain)
	if !ok {
		err = status.Errorf(status.NotSupported, "RDMA transport %s cannot reach memory of "+
			"programs written for DOCA", s.target.device.Capabilities().Transport)
	} else {
		s.imported, err = importing.Import(m.Export)
	}
	if err != nil {
		return rdma.RemoteMemory{}, errors.Join(fmt.Errorf("import the client's memory: %w", err),
			s.free())
	}
	memory := s.imported.RemoteMemory()
	s.foreign = dialects.NewInitiatorTranslator(r.Version(), memory.Base)
	return memory, nil
}

// CreateConnection connects one of a queue's RDMA connections. What is the data connection here
// carries the messages, and is the control connection there.
func (r *dialectRelay) CreateConnection(
	ctx context.Context, m *dialects.CreateConnection,
) ([]byte, error) {
	queue := m.Context
	if r.Version() == dialects.DOCA2_10 {
		queue = r.requested / uint32(iomsg.ConnectionRoleCount)
	}
	role := iomsg.ControlConnection
	if m.Role == dialects.RoleControl {
		role = iomsg.DataConnection
	}
	lanes := r.session.openLanes()
	if int64(queue) >= int64(len(lanes)) || r.connected[queue][role] {
		return nil, status.Errorf(status.InvalidValue, "queue %d, role %d does not exist, or is "+
			"connected already", queue, m.Role)
	}
	r.connected[queue][role] = true
	r.requested++
	ctx, cancel := context.WithTimeout(ctx, r.session.target.config.ControlTimeout)
	defer cancel()
	return lanes[queue].AcceptForeign(ctx, role, m.Details, r.session.outboundReads())
}

// StartConnections checks that the relay has connected everything.
func (r *dialectRelay) StartConnections(context.Context) error {
	for queue, roles := range r.connected {
		for _, isConnected := range roles {
			if !isConnected {
				return status.Errorf(status.BadState, "queue %d is not connected", queue)
			}
		}
	}
	return nil
}

// StartStorage starts the data path.
func (r *dialectRelay) StartStorage(ctx context.Context) error {
	return r.session.StartStorage(ctx)
}

// Stopped returns a channel that is closed when the stop message of 2.10 has been returned, which
// initiators send on the first queue, or nil if the session has no queues.
func (r *dialectRelay) Stopped() <-chan struct{} {
	lanes := r.session.openLanes()
	if len(lanes) == 0 {
		return nil
	}
	return lanes[0].Stopped()
}

// Shutdown releases everything.
func (r *dialectRelay) Shutdown(ctx context.Context) (done bool, err error) {
	if err := r.session.Stop(ctx); err != nil {
		return false, err
	}
	return r.session.DestroyObjects(ctx)
}
