package controlmsg

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A conversation is the set of requests that one role may send to another,
// and their order. Both sides follow the same table.
type conversation struct {
	requester Role
	responder Role
	steps     []step
	// countsConsumers: StartDataPathConnections and its reply name one
	// consumer for each queue.
	countsConsumers bool
	// countsConnections: every connection of every queue is created once
	// before StartDataPathConnections.
	countsConnections bool
}

// step is a line of the table: one kind of request.
type step struct {
	request Kind
	// from are the phases, as completed last, in which it is allowed.
	from phaseSet
	// during is the phase until it is answered, after the one from then on.
	during, after Phase
	// retriable: a failure leaves the phase as it was, so that the requester
	// may correct its request. Any other failure leads to PhaseFailed.
	retriable bool
}

// initiatorToRelay is what an initiator asks of a relay.
var initiatorToRelay = conversation{
	requester: RoleInitiator, responder: RoleRelay, countsConsumers: true,
	steps: []step{
		{request: KindHello, from: phases(PhaseConnect), during: PhaseHello, after: PhaseHello, retriable: true},
		{request: KindOpenVolume, from: phases(PhaseHello, PhaseOpenVolume), during: PhaseOpenVolume, after: PhaseOpenVolume, retriable: true},
		{request: KindConfigureDataPath, from: phases(PhaseOpenVolume), during: PhaseConfigureDataPath, after: PhaseConfigureDataPath, retriable: true},
		{request: KindStartDataPathConnections, from: phases(PhaseConfigureDataPath), during: PhaseStartConnections, after: PhaseStartConnections},
		{request: KindStartStorage, from: phases(PhaseStartConnections), during: PhaseStartStorage, after: PhaseRunning},
		{request: KindStop, from: built, during: PhaseStopping, after: PhaseStopping},
		{request: KindDestroyObjects, from: greeted, during: PhaseDestroying, after: PhaseDestroying},
	},
}

// relayToTarget is what a relay asks of a target. It differs by the RDMA
// connections that are created between configuring and starting.
var relayToTarget = conversation{
	requester: RoleRelay, responder: RoleTarget, countsConnections: true,
	steps: []step{
		{request: KindHello, from: phases(PhaseConnect), during: PhaseHello, after: PhaseHello, retriable: true},
		{request: KindOpenVolume, from: phases(PhaseHello, PhaseOpenVolume), during: PhaseOpenVolume, after: PhaseOpenVolume, retriable: true},
		{request: KindConfigureDataPath, from: phases(PhaseOpenVolume), during: PhaseConfigureDataPath, after: PhaseConfigureDataPath, retriable: true},
		{request: KindCreateRDMAConnection, from: phases(PhaseConfigureDataPath, PhaseCreateConnections), during: PhaseCreateConnections, after: PhaseCreateConnections},
		{request: KindStartDataPathConnections, from: phases(PhaseCreateConnections), during: PhaseStartConnections, after: PhaseStartConnections},
		{request: KindStartStorage, from: phases(PhaseStartConnections), during: PhaseStartStorage, after: PhaseRunning},
		{request: KindStop, from: built, during: PhaseStopping, after: PhaseStopping},
		{request: KindDestroyObjects, from: greeted, during: PhaseDestroying, after: PhaseDestroying},
	},
}

// built are the phases in which there is something to stop.
var built = phases(PhaseConfigureDataPath, PhaseCreateConnections, PhaseStartConnections, PhaseRunning)

// greeted are all phases after the greeting but the last.
var greeted = built | phases(PhaseHello, PhaseOpenVolume, PhaseStopping, PhaseFailed)

// phaseSet is a set of phases.
type phaseSet uint32

func phases(members ...Phase) phaseSet {
	var set phaseSet
	for _, p := range members {
		set |= 1 << p
	}
	return set
}

func (s phaseSet) has(p Phase) bool { return s&(1<<p) != 0 }

// conversationAsking is the conversation in which role asks, nil if there is
// none.
func conversationAsking(role Role) *conversation {
	for _, c := range []*conversation{&initiatorToRelay, &relayToTarget} {
		if c.requester == role {
			return c
		}
	}
	return nil
}

// conversationAnswering is the conversation in which role answers, nil if
// there is none.
func conversationAnswering(role Role) *conversation {
	for _, c := range []*conversation{&initiatorToRelay, &relayToTarget} {
		if c.responder == role {
			return c
		}
	}
	return nil
}

// find returns the line of a request, nil if the conversation has none.
func (c *conversation) find(request Kind) *step {
	for i := range c.steps {
		if c.steps[i].request == request {
			return &c.steps[i]
		}
	}
	return nil
}

// machine follows a conversation, on either side, and refuses what is out of
// order. It is not safe for concurrent use.
type machine struct {
	conversation *conversation
	reached      Phase // completed last
	pending      *step // of the request that is not answered yet, or nil
	request      Message

	// What the accepted configuration asks for.
	queues  uint32
	created connectionSet
}

func newMachine(c *conversation) machine {
	return machine{conversation: c, reached: PhaseConnect}
}

// phase is the step under way or, between requests, the one completed last.
func (m *machine) phase() Phase {
	if m.pending != nil {
		return m.pending.during
	}
	return m.reached
}

// begin takes up a request. If it fails, nothing has changed.
func (m *machine) begin(request Message) error {
	kind := request.Kind()
	s := m.conversation.find(kind)
	if s == nil {
		return status.Errorf(status.Unexpected, "%v is no request that the %v takes from the %v",
			kind, m.conversation.responder, m.conversation.requester)
	}
	if m.pending != nil {
		return status.Errorf(status.BadState, "%v came before %v was answered", kind, m.pending.request)
	}
	if !s.from.has(m.reached) {
		return status.Errorf(status.BadState, "%v is out of order in phase %v", kind, m.reached)
	}
	if err := m.checkRequest(request); err != nil {
		return err
	}
	m.pending, m.request = s, request
	return nil
}

// checkRequest compares a request with what was agreed before.
func (m *machine) checkRequest(request Message) error {
	switch r := request.(type) {
	case *Hello:
		if r.Role != m.conversation.requester {
			return status.Errorf(status.Unexpected, "the %v expects the hello of the %v, this is the %v's",
				m.conversation.responder, m.conversation.requester, r.Role)
		}
	case *CreateRDMAConnection:
		return m.checkConnection(r)
	case *StartDataPathConnections:
		if missing := m.missingConnections(); missing > 0 {
			return status.Errorf(status.BadState, "%v came while %d of %d RDMA connections were missing",
				r.Kind(), missing, m.queues*connectionsPerQueue)
		}
		return m.checkConsumers(r.ConsumerIDs)
	}
	return nil
}

func (m *machine) checkConnection(r *CreateRDMAConnection) error {
	if r.Queue >= m.queues {
		return status.Errorf(status.InvalidValue, "RDMA connection for queue %d of %d", r.Queue, m.queues)
	}
	if m.created.has(r.Queue, r.Role) {
		return status.Errorf(status.AlreadyExist, "queue %d has its %v connection already", r.Queue, r.Role)
	}
	return nil
}

func (m *machine) missingConnections() uint32 {
	if !m.conversation.countsConnections {
		return 0
	}
	return m.queues*connectionsPerQueue - m.created.count
}

func (m *machine) checkConsumers(ids []uint32) error {
	if !m.conversation.countsConsumers || uint32(len(ids)) == m.queues {
		return nil
	}
	return status.Errorf(status.InvalidValue, "%d consumer ids for %d queues", len(ids), m.queues)
}

// succeed takes the reply to the pending request. If it fails, nothing has
// changed.
func (m *machine) succeed(reply Message) error {
	if m.pending == nil {
		return status.Errorf(status.BadState, "%v answers no request", reply.Kind())
	}
	if want := m.pending.request.reply(); reply.Kind() != want {
		return status.Errorf(status.Unexpected, "%v answers %v, expected is %v", reply.Kind(), m.pending.request, want)
	}
	if r, ok := reply.(*StartDataPathConnectionsReply); ok {
		if err := m.checkConsumers(r.ConsumerIDs); err != nil {
			return err
		}
	}
	switch r := m.request.(type) {
	case *ConfigureDataPath:
		m.queues, m.created = r.QueueCount, connectionSet{}
	case *CreateRDMAConnection:
		m.created.add(r.Queue, r.Role)
	}
	m.reached = m.pending.after
	m.pending, m.request = nil, nil
	return nil
}

// fail ends the pending request, if any, without success.
func (m *machine) fail() {
	if m.pending == nil {
		return
	}
	if !m.pending.retriable {
		m.reached = PhaseFailed
	}
	m.pending, m.request = nil, nil
}

const connectionsPerQueue = uint32(iomsg.ConnectionRoleCount)

// connectionSet remembers which RDMA connections were created.
type connectionSet struct {
	bits  [MaxQueues * connectionsPerQueue / 64]uint64
	count uint32
}

func (s *connectionSet) add(queue uint32, role iomsg.ConnectionRole) {
	word, bit := connectionBit(queue, role)
	s.bits[word] |= bit
	s.count++
}

func (s *connectionSet) has(queue uint32, role iomsg.ConnectionRole) bool {
	word, bit := connectionBit(queue, role)
	return s.bits[word]&bit != 0
}

func connectionBit(queue uint32, role iomsg.ConnectionRole) (word uint32, bit uint64) {
	n := queue*connectionsPerQueue + uint32(role)
	return n / 64, 1 << (n % 64)
}
