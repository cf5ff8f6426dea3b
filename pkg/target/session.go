package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// session is one control connection of a relay, with the lanes of its queues.
type session struct {
	target *Target
	log    *zap.Logger
	relay  *controlmsg.Responder
	local  *net.TCPAddr

	// ctx ends with the session; its cause is why.
	ctx    context.Context
	cancel context.CancelCauseFunc

	volume       volume.Volume
	config       controlmsg.ConfigureDataPath
	staging      int64
	domain       rdma.ProtectionDomain
	volumeMemory rdma.MemoryRegion

	mu        sync.Mutex // guards what follows, shared with the RDMA acceptor
	lanes     []*datapath.TargetLane
	stopped   bool // the relay has stopped all queues: connections may end
	closed    bool // no more connections
	accepting int  // connections that are being accepted
	accepted  sync.WaitGroup

	releaseOnce sync.Once
	releaseErr  error
}

// newSession makes a session on the transport of a connection.
func newSession(t *Target, connection *net.TCPConn, transport controlmsg.Transport) *session {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &session{
		target: t, ctx: ctx, cancel: cancel, local: connection.LocalAddr().(*net.TCPAddr),
		log: t.log.With(zap.Uint64("session", t.sessionID.Add(1)), zap.String("relay", transport.RemoteName())),
		relay: controlmsg.NewResponder(transport, controlmsg.EndpointConfig{
			Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleTarget, Timeout: t.config.ControlTimeout,
			KeepAlive: t.config.KeepAlive, Software: t.config.Software, Logger: t.log,
		}),
	}
}

// refuse ends a session that is one too many.
func (s *session) refuse() {
	s.relay.Close(status.Errorf(status.Full, "the target has its maximum of %d sessions", s.target.config.MaxSessions))
	s.cancel(nil)
}

// run serves the relay until the session ends, and releases it.
func (s *session) run() {
	s.log.Debug("relay connected")
	go s.watchRelay()
	reason := s.serve()
	s.cancel(reason)
	s.end(reason)
}

// serve answers the relay's requests. It returns nil after an orderly end.
func (s *session) serve() error {
	for {
		request, err := s.relay.Next(s.ctx)
		if cause := context.Cause(s.ctx); cause != nil {
			return cause
		}
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		reply, err := s.handle(request.Message)
		if cause := context.Cause(s.ctx); cause != nil {
			err = cause
		}
		if err != nil {
			s.log.Warn("request failed", zap.Stringer("request", request.Message.Kind()), zap.Error(err))
			err = s.relay.Fail(s.answering(), request.Correlation, err)
		} else {
			err = s.relay.Reply(s.answering(), request.Correlation, reply)
		}
		if err != nil {
			return fmt.Errorf("answer %v: %w", request.Message.Kind(), err)
		}
		if request.Message.Kind() == controlmsg.KindDestroyObjects {
			return nil
		}
	}
}

// answering is the context for answers: also one that tells why the session
// ends must go out. The endpoint bounds it.
func (s *session) answering() context.Context { return context.WithoutCancel(s.ctx) }

// handle carries out one request of the relay. The responder has checked that
// it comes in order.
func (s *session) handle(message controlmsg.Message) (controlmsg.Message, error) {
	switch m := message.(type) {
	case *controlmsg.OpenVolume:
		return s.openVolume(m)
	case *controlmsg.ConfigureDataPath:
		return s.configure(m)
	case *controlmsg.CreateRDMAConnection:
		return s.announce(m)
	case *controlmsg.StartDataPathConnections:
		return s.startConnections(m)
	case *controlmsg.StartStorage:
		return s.startStorage()
	case *controlmsg.Stop:
		return s.stop()
	case *controlmsg.DestroyObjects:
		return &controlmsg.DestroyObjectsReply{}, s.release()
	}
	return nil, status.Errorf(status.Unexpected, "request %v is not for a target", message.Kind())
}

func (s *session) openVolume(m *controlmsg.OpenVolume) (controlmsg.Message, error) {
	v, ok := s.target.config.Volumes[m.Volume]
	if !ok {
		return nil, status.Errorf(status.NotFound, "the target has no volume %q", m.Volume)
	}
	s.volume = v
	info := v.Info()
	return &controlmsg.OpenVolumeReply{
		Volume: info.Name, UUID: info.UUID, WriteVerifier: s.target.verifier,
		Size: info.Size, BlockSize: info.BlockSize, ReadOnly: info.ReadOnly, Capabilities: uint32(info.Capabilities),
		MaxQueues: maxQueues, MaxDepth: maxDepth, MaxBufferSize: maxBufferSize,
		Transport: s.target.device.Capabilities().Transport,
	}, nil
}

// configure makes the lanes, without connections.
func (s *session) configure(m *controlmsg.ConfigureDataPath) (controlmsg.Message, error) {
	if err := s.checkConfiguration(m); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.target.config.ControlTimeout)
	defer cancel()
	if err := s.target.clients.enter(ctx, m.ClientInstance, m.Epoch, s); err != nil {
		s.target.clients.withdraw(m.ClientInstance, m.Epoch, s)
		return nil, errors.Join(err, s.releaseMemory())
	}
	s.config = *m
	if err := s.makeLanes(ctx); err != nil {
		return nil, errors.Join(err, s.dropConfiguration())
	}
	return &controlmsg.ConfigureDataPathReply{InboundReads: uint32(s.outboundReads())}, nil
}

func (s *session) checkConfiguration(m *controlmsg.ConfigureDataPath) error {
	info := s.volume.Info()
	transport := s.target.device.Capabilities().Transport
	switch {
	case m.Export.RDMA == nil:
		return status.Errorf(status.InvalidValue, "the export is not one for RDMA")
	case m.Export.RDMA.Transport != transport:
		return status.Errorf(status.NotSupported, "the relay uses RDMA transport %q, the target %q", m.Export.RDMA.Transport, transport)
	case m.QueueCount > maxQueues:
		return status.Errorf(status.TooBig, "%d queues are more than the %d that are allowed", m.QueueCount, maxQueues)
	case m.Depth > maxDepth:
		return status.Errorf(status.TooBig, "depth %d is more than the %d that is allowed", m.Depth, maxDepth)
	case m.BufferSize > maxBufferSize:
		return status.Errorf(status.TooBig, "buffer size %d is more than the %d that is allowed", m.BufferSize, maxBufferSize)
	case m.BufferSize%info.BlockSize != 0:
		return status.Errorf(status.InvalidValue, "buffer size %d is not a multiple of the volume's block size %d", m.BufferSize, info.BlockSize)
	}
	return s.reserveStaging(int64(m.QueueCount) * int64(m.Depth) * int64(m.BufferSize))
}

func (s *session) reserveStaging(bytes int64) error {
	limit := int64(s.target.config.StagingLimit)
	if total := s.target.staging.Add(bytes); total > limit {
		s.target.staging.Add(-bytes)
		return status.Errorf(status.NoMemory,
			"staging of %d bytes (queues x depth x buffer size): all sessions together may use %d and %d are taken",
			bytes, limit, total-bytes)
	}
	s.staging = bytes
	return nil
}

func (s *session) makeLanes(ctx context.Context) error {
	var err error
	if s.domain, err = s.target.device.NewProtectionDomain(); err != nil {
		return fmt.Errorf("make a protection domain: %w", err)
	}
	capabilities := s.target.device.Capabilities()
	if content := s.volume.Memory(); content != nil && !capabilities.StableSource {
		if s.volumeMemory, err = s.domain.Register(content, 0); err != nil {
			return fmt.Errorf("register the volume's memory: %w", err)
		}
	}
	for queue := range int(s.config.QueueCount) {
		lane, err := datapath.NewTargetLane(ctx, s.laneConfig(queue))
		if err != nil {
			return fmt.Errorf("queue %d: %w", queue, err)
		}
		s.mu.Lock()
		s.lanes = append(s.lanes, lane)
		s.mu.Unlock()
	}
	return nil
}

func (s *session) laneConfig(queue int) datapath.TargetLaneConfig {
	return datapath.TargetLaneConfig{
		Worker: s.target.pool.Pick(), Queue: queue, Counters: s.target.counters[s.volume.Info().Name],
		Device: s.target.device, Domain: s.domain, Volume: s.volume, VolumeMemory: s.volumeMemory,
		Export: s.config.Export.RemoteMemory(),
		Depth:  int(s.config.Depth), BufferSize: s.config.BufferSize, OnFailure: s.laneFailed(queue),
	}
}

// dropConfiguration undoes a configure that failed, so that the relay can try
// again with less.
func (s *session) dropConfiguration() error {
	stuck, err := s.closeLanes()
	if len(stuck) > 0 {
		s.mu.Lock()
		s.lanes = stuck // for release
		s.mu.Unlock()
		return err
	}
	s.target.clients.withdraw(s.config.ClientInstance, s.config.Epoch, s)
	return errors.Join(err, s.releaseMemory())
}

// outboundReads is how many RDMA Reads a queue may have outstanding.
func (s *session) outboundReads() int {
	return min(int(s.config.Depth), s.target.device.Capabilities().MaxOutboundReads)
}

// announce gives out a token for an RDMA connection that the relay is about
// to make.
func (s *session) announce(m *controlmsg.CreateRDMAConnection) (controlmsg.Message, error) {
	token, err := s.target.tokens.issue(tokenRecord{session: s, queue: m.Queue, role: m.Role, source: m.Source.Unmap()}, time.Now())
	if err != nil {
		return nil, err
	}
	return &controlmsg.CreateRDMAConnectionReply{Address: s.rdmaAddress(), Token: token, Staging: s.stagingFor(m)}, nil
}

// stagingFor is where the relay may put the data of a queue's writes.
func (s *session) stagingFor(m *controlmsg.CreateRDMAConnection) *rdma.RemoteMemory {
	lanes := s.currentLanes()
	if m.Role != iomsg.DataConnection || int(m.Queue) >= len(lanes) {
		return nil
	}
	staging := lanes[m.Queue].Staging()
	return &staging
}

// rdmaAddress is where this relay reaches the RDMA listener: if that listens
// on every address, at the one that the relay has reached already.
func (s *session) rdmaAddress() netip.AddrPort {
	address := s.target.rdma.Address()
	if !address.Addr().IsUnspecified() {
		return address
	}
	local := s.local.AddrPort().Addr().Unmap()
	return netip.AddrPortFrom(local, address.Port())
}

// startConnections waits until all announced connections have been made and
// their hellos exchanged.
func (s *session) startConnections(m *controlmsg.StartDataPathConnections) (controlmsg.Message, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.target.config.ControlTimeout)
	defer cancel()
	for queue, lane := range s.currentLanes() {
		if err := lane.Ready(ctx); err != nil {
			return nil, fmt.Errorf("queue %d: %w", queue, err)
		}
	}
	return &controlmsg.StartDataPathConnectionsReply{ConsumerIDs: m.ConsumerIDs}, nil
}

// startStorage lets the lanes take requests.
func (s *session) startStorage() (controlmsg.Message, error) {
	for queue, lane := range s.currentLanes() {
		if err := lane.Start(s.ctx); err != nil {
			return nil, fmt.Errorf("queue %d: %w", queue, err)
		}
	}
	return &controlmsg.StartStorageReply{}, nil
}

func (s *session) stop() (controlmsg.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	return &controlmsg.StopReply{}, nil
}

func (s *session) currentLanes() []*datapath.TargetLane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lanes)
}

var errShuttingDown = status.Errorf(status.Shutdown, "the target is shutting down (drain)")
