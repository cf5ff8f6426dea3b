// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"slices"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A conversation is the set of requests that one role may send to another, and their order. Both
// sides follow the same table.
type conversation struct {
	requester Role
	responder Role
	steps     []step
	// hasConsumers: StartDataPathConnections and its reply name one consumer per queue.
	hasConsumers bool
	// hasConnections: every connection of every queue is created exactly once before
	// StartDataPathConnections.
	hasConnections bool
}

// A step is one line of the table.
type step struct {
	request Kind
	// from is the set of completed phases in which the request is accepted.
	from phaseSet
	// during is the phase while the request is outstanding; after is the phase once it has
	// succeeded.
	during, after Phase
	// retriable: a failure leaves the phase as it was, so that the requester can correct and repeat
	// the request. The failure of any other request leads to PhaseFailed.
	retriable bool
}

var (
	// configured is the set of phases in which there is something to stop.
	configured = phases(PhaseConfigureDataPath, PhaseCreateConnections, PhaseStartConnections,
		PhaseRunning)
	// greeted is the set of phases between hello and destroy_objects.
	greeted = configured | phases(PhaseHello, PhaseOpenVolume, PhaseStopping, PhaseFailed)

	setupSteps = []step{
		{request: KindHello, from: phases(PhaseConnect),
			during: PhaseHello, after: PhaseHello, retriable: true},
		{request: KindOpenVolume, from: phases(PhaseHello, PhaseOpenVolume),
			during: PhaseOpenVolume, after: PhaseOpenVolume, retriable: true},
		{request: KindConfigureDataPath, from: phases(PhaseOpenVolume),
			during: PhaseConfigureDataPath, after: PhaseConfigureDataPath, retriable: true},
	}
	serviceSteps = []step{
		{request: KindStartStorage, from: phases(PhaseStartConnections),
			during: PhaseStartStorage, after: PhaseRunning},
		{request: KindStop, from: configured,
			during: PhaseStopping, after: PhaseStopping},
		{request: KindDestroyObjects, from: greeted,
			during: PhaseDestroying, after: PhaseDestroying},
	}
)

var initiatorToRelay = conversation{
	requester: RoleInitiator, responder: RoleRelay, hasConsumers: true,
	steps: slices.Concat(setupSteps, []step{
		{request: KindStartDataPathConnections, from: phases(PhaseConfigureDataPath),
			during: PhaseStartConnections, after: PhaseStartConnections},
	}, serviceSteps),
}

var relayToTarget = conversation{
	requester: RoleRelay, responder: RoleTarget, hasConnections: true,
	steps: slices.Concat(setupSteps, []step{
		{request: KindCreateRDMAConnection, from: phases(PhaseConfigureDataPath,
			PhaseCreateConnections), during: PhaseCreateConnections, after: PhaseCreateConnections},
		{request: KindStartDataPathConnections, from: phases(PhaseCreateConnections),
			during: PhaseStartConnections, after: PhaseStartConnections},
	}, serviceSteps),
}

// The conversations, by the role of one side. The relay takes part in both.
var (
	conversationOfRequester = map[Role]*conversation{
		RoleInitiator: &initiatorToRelay, RoleRelay: &relayToTarget,
	}
	conversationOfResponder = map[Role]*conversation{
		RoleRelay: &initiatorToRelay, RoleTarget: &relayToTarget,
	}
)

// machine tracks a conversation on either side and rejects messages that are out of order. It is
// not safe for concurrent use.
type machine struct {
	conversation *conversation
	completed    Phase   // by the last successful request
	step         *step   // of the outstanding request; nil if there is none
	request      Message // outstanding
	queues       uint32  // of the accepted configuration
	created      connectionSet
}

func newMachine(c *conversation) machine {
	return machine{conversation: c, completed: PhaseConnect}
}

// phase returns the current step or, between requests, the last completed one.
func (m *machine) phase() Phase {
	if m.step != nil {
		return m.step.during
	}
	return m.completed
}

// begin makes request the outstanding one. If it fails, nothing has changed.
func (m *machine) begin(request Message) error {
	kind := request.Kind()
	i := slices.IndexFunc(m.conversation.steps, func(s step) bool { return s.request == kind })
	if i < 0 {
		return status.Errorf(status.Unexpected, "%v is not a request from the %v to the %v",
			kind, m.conversation.requester, m.conversation.responder)
	}
	if m.step != nil {
		return status.Errorf(status.BadState, "%v came before the reply to %v",
			kind, m.step.request)
	}
	s := &m.conversation.steps[i]
	if !s.from.has(m.completed) {
		return status.Errorf(status.BadState, "%v is out of order in phase %v", kind, m.completed)
	}
	if err := m.checkAgreement(request); err != nil {
		return err
	}
	m.step, m.request = s, request
	return nil
}

// checkAgreement compares a request with what earlier requests have established.
func (m *machine) checkAgreement(request Message) error {
	switch r := request.(type) {
	case *Hello:
		if r.Role != m.conversation.requester {
			return status.Errorf(status.Unexpected,
				"the %v expects a hello from the %v, but got one from the %v",
				m.conversation.responder, m.conversation.requester, r.Role)
		}
	case *CreateRDMAConnection:
		if r.Queue >= m.queues {
			return status.Errorf(status.InvalidValue,
				"RDMA connection for queue %d, but the session has %d queues", r.Queue, m.queues)
		}
		if m.created.has(r.Queue, r.Role) {
			return status.Errorf(status.AlreadyExist, "queue %d already has a %v connection",
				r.Queue, r.Role)
		}
	case *StartDataPathConnections:
		expected := m.queues * connectionsPerQueue
		if missing := expected - m.created.count; m.conversation.hasConnections && missing > 0 {
			return status.Errorf(status.BadState,
				"%v came while %d of %d RDMA connections were missing",
				r.Kind(), missing, expected)
		}
		return m.checkConsumers(r.ConsumerIDs)
	}
	return nil
}

func (m *machine) checkConsumers(ids []uint32) error {
	if !m.conversation.hasConsumers || uint32(len(ids)) == m.queues {
		return nil
	}
	return status.Errorf(status.InvalidValue, "%d consumer ids for %d queues", len(ids), m.queues)
}

// succeed completes the outstanding request with its reply. If it fails, nothing has changed.
func (m *machine) succeed(reply Message) error {
	if m.step == nil {
		return status.Errorf(status.BadState, "unsolicited %v", reply.Kind())
	}
	if want := m.step.request.reply(); reply.Kind() != want {
		return status.Errorf(status.Unexpected, "%v in reply to %v, expected %v",
			reply.Kind(), m.step.request, want)
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
	m.completed = m.step.after
	m.step, m.request = nil, nil
	return nil
}

// fail ends the outstanding request, if any, without success.
func (m *machine) fail() {
	if m.step == nil {
		return
	}
	if !m.step.retriable {
		m.completed = PhaseFailed
	}
	m.step, m.request = nil, nil
}

const connectionsPerQueue = uint32(iomsg.ConnectionRoleCount)

// connectionSet is the set of RDMA connections that have been created.
type connectionSet struct {
	bits  [MaxQueues * connectionsPerQueue / 64]uint64
	count uint32
}

func (s *connectionSet) add(queue uint32, role iomsg.ConnectionRole) {
	n := queue*connectionsPerQueue + uint32(role)
	s.bits[n/64] |= 1 << (n % 64)
	s.count++
}

func (s *connectionSet) has(queue uint32, role iomsg.ConnectionRole) bool {
	n := queue*connectionsPerQueue + uint32(role)
	return s.bits[n/64]&(1<<(n%64)) != 0
}

type phaseSet uint32

func phases(members ...Phase) phaseSet {
	var set phaseSet
	for _, p := range members {
		set |= 1 << p
	}
	return set
}

func (s phaseSet) has(p Phase) bool { return s&(1<<p) != 0 }
