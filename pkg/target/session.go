// SPDX-License-Identifier: Apache-2.0

package target

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// session is a client's session as the target sees it: a relay's control connection, and the lanes
// of its queues. It is the controlmsg.TargetHandler of the relay's requests.
type session struct {
	*pendingConnection // its context ends with the session, with the reason as the cause

	id     uint64
	opened time.Time
	target *Target
	log    *zap.Logger
	relay  controlmsg.Server
	peer   string // the relay, for people
	// relayChains verify the relay's certificate, which is for relayNames; nil without TLS.
	relayChains [][]*x509.Certificate
	relayNames  []mutualtls.Name
	// control is the control connection as it is, and binder what tells the TLS connections that
	// belong to it; nil if data travels without TLS.
	control  controlmsg.Transport
	binder   *controlmsg.DataBinder
	local    netip.Addr // that the relay has connected to
	epoch    *epoch.Session
	tenancy  *lease.Tenancy // of the relay's connection; nil for relays of the applications
	admitted bool

	opening      *time.Timer // ends a session that opens no volume
	offer        *offer
	served       atomic.Pointer[offer] // the same, for any goroutine
	counters     datapath.CounterSet
	owned        *volume.Ownership // ends the session; nil if nobody can take the volume over
	config       controlmsg.ConfigureDataPath
	readOnly     bool           // nothing of the session may change the volume
	lease        *lease.Session // nil if the relay answers no questions
	memory       int64          // bytes reserved
	domain       rdma.ProtectionDomain
	imported     rdma.ImportedRegion // the client's memory, from a relay of the applications
	foreign      datapath.Translator // of that relay's IO messages; nil for our protocol
	volumeMemory rdma.MemoryRegion
	// serving carries out the relay's requests, and freeing frees what is above.
	serving, freeing devicecall.Step

	mu        sync.Mutex // guards what follows, shared with the RDMA acceptor
	lanes     []*datapath.TargetLane
	draining  bool           // lanes that have not started never do
	stopped   bool           // the relay has stopped all queues: connections may end
	closed    bool           // no more connections
	accepting int            // connections being accepted
	accepted  sync.WaitGroup // of those

	releaseOnce sync.Once
	releaseErr  error
}

// newSession returns the session of a control connection. If the relay's first message tells the
// protocol, newSession waits for it, and returns nil if the target shuts down before.
func newSession(t *Target, p *pendingConnection, transport controlmsg.Transport) *session {
	id := t.sessionID.Add(1)
	log := t.log.With(zap.Uint64("session", id),
		zap.String("relay", transport.RemoteName()))
	s := &session{
		pendingConnection: p, id: id, opened: time.Now(), target: t, log: log,
		epoch:   epoch.NewSession(p.cancel),
		control: transport,
		peer:    transport.RemoteName(), relayChains: controlmsg.VerifiedChains(transport),
		local: network.AddressOf(p.stream.LocalAddr()).Addr(),
	}
	if len(s.relayChains) > 0 {
		s.relayNames = mutualtls.Names(s.relayChains[0][0])
	}
	transport = t.config.HookTransport(transport)
	version := t.config.Protocol
	if t.config.DetectProtocol {
		var begun controlmsg.Transport
		version, begun, _ = dialects.DetectPeer(p.ctx, transport) // the session gets the error
		if p.ctx.Err() != nil {
			if err := transport.Close(); err != nil {
				log.Debug("close a connection that has said nothing", zap.Error(err))
			}
			return nil
		}
		transport = begun
	}
	if version != dialects.None {
		s.relay = newDialectRelay(s, transport, version)
		return s
	}
	var responder *controlmsg.Responder
	s.tenancy = t.lessor.Connect(func() { responder.Announce() })
	responder = controlmsg.NewResponder(transport, controlmsg.EndpointConfig{
		Role:      controlmsg.RoleTarget,
		Timeout:   t.config.ControlTimeout,
		KeepAlive: t.config.KeepAlive, OnHello: s.greeted,
		Announce: func(m *controlmsg.KeepAlive) {
			m.VolumeSize, m.Question = s.volumeSize(), s.tenancy.Question()
		},
		AnnounceEvery: t.lessor.Length() / 5,
		OnKeepAlive:   func(m *controlmsg.KeepAlive) error { return s.tenancy.Hear(&m.Answer) },
		Software:      t.config.Software, Process: t.process, Peers: t.peers,
		Rejections: &t.rejections, Logger: log,
	})
	s.relay = responder
	return s
}

// admit makes the connection count as a session, or returns why it cannot.
func (s *session) admit() error {
	if s.admitted {
		return nil
	}
	if err := s.target.admission.admit(s.pendingConnection, s); err != nil {
		return err
	}
	s.admitted = true
	s.target.sessionsTotal.Add(1)
	err := s.checkRelay() // SetAllowedNames may not have seen the session
	if err != nil {
		s.target.admission.release(s)
	}
	return err
}

// greeted completes the answer to the relay's hello.
func (s *session) greeted(hello *controlmsg.Hello, reply *controlmsg.HelloReply) error {
	reply.DataSecurity = s.target.config.DataSecurity
	useTLS, err := controlmsg.DataUsesTLS(hello.DataSecurity, reply.DataSecurity)
	if _, protects := rdma.Secure(s.target.device); err == nil && useTLS && protects {
		s.binder, err = controlmsg.NewDataBinder(s.control)
	}
	if err != nil {
		return err
	}
	reply.LeaseMs = uint32(s.target.lessor.Length().Milliseconds())
	reply.Question = s.tenancy.Question().Number
	return s.begin()
}

// begin admits a relay that has sent its first message. From then on the relay has a bounded time
// to open a volume, however many requests fail.
func (s *session) begin() error {
	if err := s.admit(); err != nil {
		return err
	}
	timeout := s.target.config.ControlTimeout
	s.opening = time.AfterFunc(timeout, func() {
		s.cancel(status.Errorf(status.TimeOut, "the relay has not opened a volume within %v",
			timeout))
	})
	return nil
}

// run serves the relay until the session ends, and releases the session.
func (s *session) run() {
	s.log.Debug("relay connected")
	go s.watchRelay()
	reason := s.serve()
	if s.serving.IsUnderWay() {
		s.abandon(reason)
		return
	}
	if reason != nil && s.ctx.Err() == nil {
		reason = fmt.Errorf("relay: %w", reason)
	}
	s.cancel(reason)
	if reason != nil {
		reason = context.Cause(s.ctx) // watchRelay may have been first
	}
	s.end(reason)
	s.target.admission.release(s)
}

// serve serves the relay. It fails with status.TimeOut if one of the requests waits for a device
// after the session has ended, for longer than volume IO may take.
func (s *session) serve() error {
	ctx, cancel := devicecall.After(s.ctx, s.target.answerTimeout)
	defer cancel()
	return s.serving.Take(ctx, "carry out a request of the relay",
		func() error { return s.relay.Serve(s.ctx, s) })
}

// OpenVolume describes the volume and announces the target's limits.
func (s *session) OpenVolume(
	ctx context.Context, m *controlmsg.OpenVolume,
) (*controlmsg.OpenVolumeReply, error) {
	offer, access, err := s.target.offers.choose(s, m.Volume)
	if err != nil {
		return nil, err
	}
	if err := checkUsable(offer); err != nil {
		return nil, err
	}
	isConfirmed := false
	if m.Confirm {
		if isConfirmed, err = s.isOwner(ctx, offer); err != nil {
			return nil, err
		}
	}
	if o := offer.Volume.Ownership(); o != nil {
		standBy, changed := o.State()
		if standBy != nil {
			o.Want()
			return nil, fmt.Errorf("volume %q: %w", offer.name, standBy)
		}
		if s.owned != o { // the relay may repeat the request
			s.owned = o
			context.AfterFunc(s.ctx, o.Use())
			go s.watchOwnership(o, changed)
		}
	}
	if err := s.target.admission.keep(s); err != nil {
		return nil, err
	}
	s.opening.Stop()
	s.offer = offer
	s.served.Store(offer)
	reply := s.describeVolume(access)
	use := s.target.offers.describe(offer)
	reply.Sessions, reply.Holder, reply.HolderID = uint32(use.Sessions), use.Holder, use.HolderID
	reply.Confirmed = isConfirmed
	return reply, nil
}

// ownerCheckTimeout bounds how long the answer to a relay is delayed by a storage that does not say
// whether the target still owns a volume.
const ownerCheckTimeout = time.Second

// isOwner reports whether the target certainly owns a volume now. It fails if the target does not.
func (s *session) isOwner(ctx context.Context, offer *offer) (bool, error) {
	if o := offer.Volume.Ownership(); o != nil {
		if standBy, _ := o.State(); standBy != nil {
			return false, nil // which OpenVolume answers
		}
	}
	ctx, cancel := context.WithTimeout(ctx, ownerCheckTimeout)
	defer cancel()
	err := offer.Volume.CheckOwner(ctx)
	if errors.Is(err, status.TimeOut) {
		s.log.Warn("cannot find out whether this target still owns the volume",
			zap.String("volume", offer.name), zap.Error(err))
		return false, nil
	}
	return err == nil, err
}

// describeVolume describes the volume to a relay that has the given access to it.
func (s *session) describeVolume(access Access) *controlmsg.OpenVolumeReply {
	info := s.offer.Volume.Info()
	if info.Fenced {
		info.Sole = "fenced"
	}
	listener := s.rdmaAddress()
	return &controlmsg.OpenVolumeReply{
		Volume: s.offer.name, UUID: info.UUID,
		WriteVerifier: cmp.Or(info.WriteVerifier, s.target.verifier),
		Size:          info.Size, BlockSize: info.BlockSize, ReadOnly: s.isReadOnly(access),
		Capabilities: uint32(info.Capabilities),
		MaxQueues:    controlmsg.SessionMaxQueues, MaxDepth: controlmsg.SessionMaxDepth,
		MaxBufferSize: controlmsg.SessionMaxBufferSize,
		Transport:     s.target.device.Capabilities().Transport,
		Exclusive:     s.offer.Exclusive, Fenced: info.Fenced,
		RDMAPort: listener.Port(), RDMAAddress: listener.Addr(), Sole: info.Sole,
	}
}

// volumeSize returns the size of the volume for keep-alives, 0 while there is none.
func (s *session) volumeSize() uint64 {
	if offer := s.served.Load(); offer != nil {
		return offer.Volume.Info().Size
	}
	return 0
}

// isReadOnly reports whether no session of a relay with the given access can change the volume.
func (s *session) isReadOnly(access Access) bool {
	return s.offer.ReadOnly || access < WriteAccess || s.offer.Volume.Info().ReadOnly
}

// ConfigureDataPath creates the lanes, without connections. If it fails, it undoes everything, so
// that the relay can try again with less. Lanes that cannot be closed are the exception: they stay
// until the session ends.
func (s *session) ConfigureDataPath(
	ctx context.Context, m *controlmsg.ConfigureDataPath,
) (*controlmsg.ConfigureDataPathReply, error) {
	if len(s.openLanes()) > 0 {
		return nil, status.Errorf(status.BadState,
			"the lanes of a failed configuration are still open")
	}
	access := s.target.offers.accessOf(s)
	if err := s.reserve(m, access); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.target.config.ControlTimeout)
	defer cancel()
	s.readOnly = m.ReadOnly || s.isReadOnly(access)
	uses, claim := WriteAccess, noClaim
	switch {
	case m.Exclusive:
		uses, claim = ExclusiveAccess, soleUser
	case s.readOnly:
		uses = ReadAccess
	case m.Session == 0: // nobody can be asked whether it has ended
		claim = soleUser
	case s.offer.Exclusive:
		claim = soleWriter
	}
	holder, err := s.open(ctx, m, uses, claim)
	if err != nil {
		s.undoOpen(m)
		if errors.Is(err, status.TimeOut) {
			err = controlmsg.Postpone(formerPause, "%w", err)
		}
		return nil, errors.Join(err, s.free())
	}
	s.config = *m
	if err := s.createLanes(ctx); err != nil {
		detaching, cancel := s.withinRelease()
		defer cancel()
		if detachErr := s.detach(detaching); detachErr != nil {
			return nil, errors.Join(err, detachErr)
		}
		s.undoOpen(m)
		if m.Preempt != 0 {
			err = fmt.Errorf("%w (nobody has the place of holder %v)", err, m.Preempt)
		}
		return nil, errors.Join(err, s.free())
	}
	return &controlmsg.ConfigureDataPathReply{InboundReads: uint32(s.outboundReads()),
		Exclusive: claim > noClaim, ReadOnly: s.readOnly, HolderID: holder,
		HolderAbsent: s.target.offers.foundNobody(s)}, nil
}

// formerPause is when a relay may try again that has waited in vain for the end of others.
const formerPause = time.Second

// open opens the volume for the session when nothing of sessions that have ended can change it any
// more. It returns the owner's ID as a holder. If it fails, the caller calls undoOpen.
func (s *session) open(
	ctx context.Context, m *controlmsg.ConfigureDataPath, uses Access, claim claim,
) (controlmsg.HolderID, error) {
	if s.tenancy != nil {
		if err := s.tenancy.Hear(&m.Answer); err != nil {
			return 0, err
		}
	}
	err := s.target.clients.Supersede(ctx, m.ClientInstance, m.Epoch, s.epoch)
	if err != nil {
		return 0, err
	}
	if err := s.takeLease(m); err != nil {
		return 0, err
	}
	if m.Preempt != 0 {
		return s.preempt(ctx, m, uses, claim)
	}
	if err := s.awaitFormer(ctx); err != nil {
		return 0, err
	}
	return s.target.offers.open(s, m, uses, claim)
}

// undoOpen undoes what open has done, even if it has failed half-way. No lane may be left.
func (s *session) undoOpen(m *controlmsg.ConfigureDataPath) {
	s.target.offers.close(s)
	s.lease.Close()
	s.lease = nil
	s.target.clients.Undo(m.ClientInstance, m.Epoch, s.epoch)
}

// preempt opens the volume in place of a holder. It does so before it waits, so that nobody comes
// between.
func (s *session) preempt(
	ctx context.Context, m *controlmsg.ConfigureDataPath, uses Access, claim claim,
) (controlmsg.HolderID, error) {
	x := s.target.offers
	holder, err := x.open(s, m, uses, claim)
	for called := false; err != nil; called = true {
		other, isInTheWay := errors.AsType[*inTheWayError](err)
		if !isInTheWay {
			return 0, err
		}
		if !called { // the other one's relay may have been silent for a while
			if err := s.target.lessor.RollCall(ctx, x.writers(s)); err != nil {
				return 0, err
			}
		}
		if !other.session.hasEnded() {
			return 0, err
		}
		if err := x.awaitEnded(ctx, s); err != nil {
			return 0, err
		}
		holder, err = x.open(s, m, uses, claim)
	}
	if err := s.awaitFormer(ctx); err != nil && s.ctx.Err() == nil {
		return 0, status.Errorf(status.Again, "holder %v is preempted, and nobody has its place: "+
			"requests that the storage has not finished are still in flight, or another relay is "+
			"silent; repeat the request: %w", m.Preempt, err)
	} else if err != nil {
		return 0, err
	}
	return holder, nil
}

// awaitFormer waits until nothing of sessions that have ended can change the volume any more, which
// includes those of relays that are silent.
func (s *session) awaitFormer(ctx context.Context) error {
	others := s.target.offers.writers(s)
	if err := s.target.lessor.RollCall(ctx, others); err != nil {
		return err
	}
	return s.target.offers.awaitEnded(ctx, s)
}

// takeLease makes the session's changes depend on its relay's answers, if the relay gives any.
func (s *session) takeLease(m *controlmsg.ConfigureDataPath) error {
	if m.Session == 0 || s.tenancy == nil {
		return nil
	}
	var err error
	s.lease, err = s.tenancy.Open(m.Session, s.cancel, func() { go s.resume() })
	return err
}

// resume makes the lanes look again at what waits for the lease.
func (s *session) resume() {
	s.log.Debug("resuming what has waited for a lease")
	defer s.log.Debug("no longer resuming")
	err := datapath.OnAll(s.openLanes(),
		func(lane *datapath.TargetLane) error { return lane.Resume(s.ctx) })
	if err != nil {
		s.log.Debug("resume after a lease", zap.Error(err))
	}
}

// reserve checks a configuration against the limits, and reserves the memory of its lanes.
func (s *session) reserve(m *controlmsg.ConfigureDataPath, access Access) error {
	announced := s.describeVolume(access)
	switch {
	case m.Export.RDMA == nil:
		return status.Errorf(status.InvalidValue, "the export has no RDMA key")
	case !controlmsg.TransportsMayAgree(m.Export.RDMA.Transport, announced.Transport):
		return status.Errorf(status.NotSupported, "the relay uses RDMA transport %q, the target %q",
			m.Export.RDMA.Transport, announced.Transport)
	}
	if err := announced.CheckLimits(m); err != nil {
		return err
	}
	if m.Exclusive && access < ExclusiveAccess {
		return status.Errorf(status.NotPermitted,
			"relay %s may not open volume %q exclusively", s.peer, s.offer.name)
	}
	if m.Preempt != 0 && access < PreemptAccess {
		return status.Errorf(status.NotPermitted,
			"relay %s may not preempt holders of volume %q", s.peer, s.offer.name)
	}
	if m.BufferSize%announced.BlockSize != 0 {
		return status.Errorf(status.InvalidValue,
			"buffer size %d is not a multiple of the volume's block size %d",
			m.BufferSize, announced.BlockSize)
	}
	lane := datapath.TargetLaneMemory(int(m.Depth), m.BufferSize)
	memory := int64(m.QueueCount) * int64(lane)
	limit := int64(s.target.config.StagingLimit)
	if total := s.target.memory.Add(memory); total > limit {
		s.target.memory.Add(-memory)
		return status.Errorf(status.NoMemory,
			"%d queues of depth %d need %d bytes for data and messages: all sessions together may "+
				"use %d and already use %d (--staging-limit); use fewer queues, or a smaller depth "+
				"or buffer size", m.QueueCount, m.Depth, memory, limit, total-memory)
	}
	s.memory = memory
	return nil
}

func (s *session) createLanes(ctx context.Context) error {
	device := s.target.device
	var err error
	if s.domain == nil {
		if s.domain, err = device.NewProtectionDomain(); err != nil {
			return fmt.Errorf("create a protection domain: %w", err)
		}
	}
	if content := s.offer.Volume.Memory(); content != nil && !device.Capabilities().StableSource {
		if s.volumeMemory, err = s.domain.Register(content, 0); err != nil {
			return fmt.Errorf("register the volume's memory: %w", err)
		}
	}
	for queue := range int(s.config.QueueCount) {
		lane, err := datapath.NewTargetLane(ctx, datapath.TargetLaneConfig{
			Worker: s.target.pool.Pick(), Queue: queue,
			Counters: s.counterSets(), Tracer: s.target.config.Tracer, Foreign: s.foreign,
			Device: device, Domain: s.domain,
			Volume: s.offer.Volume, VolumeMemory: s.volumeMemory,
			Export: s.config.Export.RemoteMemory(), ReadOnly: s.readOnly, Lease: s.lease,
			Depth: int(s.config.Depth), BufferSize: s.config.BufferSize,
			OnFailure: s.onLaneFailure(queue),
		})
		if err != nil {
			return fmt.Errorf("queue %d: %w", queue, err)
		}
		s.mu.Lock()
		s.lanes = append(s.lanes, lane)
		s.mu.Unlock()
	}
	return nil
}

// counterSets returns what counts the session's IOs.
func (s *session) counterSets() []*datapath.CounterSet {
	sets := []*datapath.CounterSet{s.offer.counters, &s.counters}
	if set := s.target.clientCounters.Of(s.offer.name, s.config.Client); set != nil {
		sets = append(sets, set)
	}
	return sets
}

// outboundReads returns how many RDMA Reads a queue may have outstanding.
func (s *session) outboundReads() int {
	return min(int(s.config.Depth), s.target.device.Capabilities().MaxOutboundReads)
}

// CreateRDMAConnection issues a token for an RDMA connection that the relay is about to establish.
func (s *session) CreateRDMAConnection(
	_ context.Context, m *controlmsg.CreateRDMAConnection,
) (*controlmsg.CreateRDMAConnectionReply, error) {
	record := tokenRecord{session: s, queue: m.Queue, role: m.Role, source: m.Source.Unmap()}
	token, err := s.target.tokens.issue(record, time.Now())
	if err != nil {
		return nil, err
	}
	reply := &controlmsg.CreateRDMAConnectionReply{Address: s.rdmaAddress(), Token: token}
	if lanes := s.openLanes(); m.Role == iomsg.DataConnection && int(m.Queue) < len(lanes) {
		staging := lanes[m.Queue].Staging()
		reply.Staging = &staging
	}
	return reply, nil
}

// rdmaAddress returns where the relay can connect to the target's RDMA listener.
func (s *session) rdmaAddress() netip.AddrPort {
	address := s.target.rdma.Address()
	if address.Addr().IsUnspecified() {
		return netip.AddrPortFrom(s.local, address.Port())
	}
	return address
}

// StartDataPathConnections waits until all announced connections are established and their hellos
// exchanged.
func (s *session) StartDataPathConnections(
	ctx context.Context, m *controlmsg.StartDataPathConnections,
) (*controlmsg.StartDataPathConnectionsReply, error) {
	ctx, cancel := context.WithTimeout(ctx, s.target.config.ControlTimeout)
	defer cancel()
	for queue, lane := range s.openLanes() {
		if err := lane.Ready(ctx); err != nil {
			return nil, fmt.Errorf("queue %d: %w", queue, err)
		}
	}
	return &controlmsg.StartDataPathConnectionsReply{ConsumerIDs: m.ConsumerIDs}, nil
}

// StartStorage lets the lanes accept requests.
func (s *session) StartStorage(ctx context.Context) error {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining {
		return status.Errorf(status.Shutdown, "the session is being drained")
	}
	for queue, lane := range s.openLanes() {
		if err := lane.Start(ctx); err != nil {
			return fmt.Errorf("queue %d: %w", queue, err)
		}
	}
	return nil
}

// Stop marks the session as stopped: from now on, the end of an RDMA connection is not a failure.
func (s *session) Stop(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	return nil
}

// DestroyObjects releases everything of the session. A second attempt could not release more, so
// the session is done in any case.
func (s *session) DestroyObjects(context.Context) (done bool, err error) {
	return true, s.release()
}

// openLanes returns the lanes opened so far. Any goroutine may call it.
func (s *session) openLanes() []*datapath.TargetLane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lanes)
}
