package controlmsg

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

// built are the phases in which there is something to stop.
var built = phases(PhaseConfigureDataPath, PhaseCreateConnections, PhaseStartConnections, PhaseRunning)

// greeted are all phases after the greeting but the last.
var greeted = built | phases(PhaseHello, PhaseOpenVolume, PhaseStopping, PhaseFailed)

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
