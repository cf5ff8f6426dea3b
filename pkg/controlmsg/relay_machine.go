package controlmsg

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// RelayMachine ties the two conversations of a relay's session together: the
// target is asked only for what the client has asked for, and the client is
// told of success only when the target has got there. A relay whose session
// asks and answers through its RelayMachine cannot promise what the target
// has not.
//
// Stopping and destroying the target's side is always allowed, because a
// client may vanish at any time. Failures are answered by Responder.Fail.
// Its methods may be called concurrently.
type RelayMachine struct {
	client *Responder
	target *Requester
}

// NewRelayMachine ties the conversation with a client to that with a target.
func NewRelayMachine(client *Responder, target *Requester) *RelayMachine {
	return &RelayMachine{client: client, target: target}
}

// tie is a line of the relay's table.
type tie struct {
	kind Kind
	// onBehalfOf are the client's requests during which the target may be
	// sent this one; nil: at any time.
	onBehalfOf []Kind
	// after are the phases of the target in which the client may be told
	// that its request of this kind has succeeded; 0: any.
	after phaseSet
}

var relayTies = []tie{
	{kind: KindConfigureDataPath,
		onBehalfOf: []Kind{KindConfigureDataPath},
		after:      phases(PhaseConfigureDataPath, PhaseCreateConnections, PhaseStartConnections)},
	{kind: KindCreateRDMAConnection,
		onBehalfOf: []Kind{KindConfigureDataPath, KindStartDataPathConnections}},
	{kind: KindStartDataPathConnections,
		onBehalfOf: []Kind{KindConfigureDataPath, KindStartDataPathConnections},
		after:      phases(PhaseStartConnections)},
	{kind: KindStartStorage,
		onBehalfOf: []Kind{KindStartStorage},
		after:      phases(PhaseRunning)},
	{kind: KindStop,
		after: phases(PhaseStopping, PhaseDestroying)},
	{kind: KindDestroyObjects,
		after: phases(PhaseConnect, PhaseHello, PhaseOpenVolume, PhaseDestroying)},
}

func findTie(kind Kind) tie {
	for _, t := range relayTies {
		if t.kind == kind {
			return t
		}
	}
	return tie{kind: kind}
}

// Call sends a request to the target as Requester.Call does. It fails with
// status.BadState if the client has not asked for it.
func (m *RelayMachine) Call(ctx context.Context, request Message) (Message, error) {
	if err := m.checkCall(request.Kind()); err != nil {
		return nil, err
	}
	return m.target.Call(ctx, request)
}

// Reply answers the client as Responder.Reply does. It fails with
// status.BadState if the target has not got there; the client's request is
// then still to be answered. What the session had on a target that is gone
// counts as destroyed.
func (m *RelayMachine) Reply(ctx context.Context, correlation uint64, reply Message) error {
	if err := m.checkReply(); err != nil {
		return err
	}
	return m.client.Reply(ctx, correlation, reply)
}

func (m *RelayMachine) checkCall(request Kind) error {
	t := findTie(request)
	if t.onBehalfOf == nil {
		return nil
	}
	asked := m.client.pendingKind()
	for _, kind := range t.onBehalfOf {
		if kind == asked {
			return nil
		}
	}
	return status.Errorf(status.BadState, "%v is for the target only while the client asks for %v", request, t.onBehalfOf)
}

func (m *RelayMachine) checkReply() error {
	t := findTie(m.client.pendingKind())
	reached := m.target.reached()
	if t.after == 0 || t.after.has(reached) {
		return nil
	}
	if t.kind == KindDestroyObjects && m.target.Err() != nil {
		return nil
	}
	return status.Errorf(status.BadState, "%v cannot be answered with success while the target is in phase %v", t.kind, reached)
}
