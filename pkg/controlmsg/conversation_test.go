// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// model restates the protocol without the tables: what has happened decides what may come next.
type model struct {
	target     bool // relay to target, else initiator to relay
	greeted    bool
	opened     bool
	configured bool
	connected  bool
	running    bool
	stopped    bool
	destroyed  bool
	failed     bool
	queues     uint32
	created    []CreateRDMAConnection
}

func (m *model) accepts(request Message) bool {
	if _, ok := request.(*Hello); ok {
		return !m.greeted
	}
	if !m.greeted || m.destroyed {
		return false
	}
	if _, ok := request.(*DestroyObjects); ok {
		return true
	}
	if m.failed || m.stopped {
		return false
	}
	switch r := request.(type) {
	case *OpenVolume:
		return !m.configured
	case *ConfigureDataPath:
		return m.opened && !m.configured
	case *CreateRDMAConnection:
		return m.target && m.configured && !m.connected && r.Queue < m.queues &&
			!slices.Contains(m.created, *r)
	case *StartDataPathConnections:
		if m.target {
			return m.configured && !m.connected && len(m.created) == int(2*m.queues)
		}
		return m.configured && !m.connected && len(r.ConsumerIDs) == int(m.queues)
	case *StartStorage:
		return m.connected && !m.running
	case *Stop:
		return m.configured
	}
	return false
}

func (m *model) succeed(request Message) {
	switch r := request.(type) {
	case *Hello:
		m.greeted = true
	case *OpenVolume:
		m.opened = true
	case *ConfigureDataPath:
		m.configured, m.queues = true, r.QueueCount
	case *CreateRDMAConnection:
		m.created = append(m.created, *r)
	case *StartDataPathConnections:
		m.connected = true
	case *StartStorage:
		m.running = true
	case *Stop:
		m.stopped = true
	case *DestroyObjects:
		m.destroyed = true
	}
}

func (m *model) fail(request Message) {
	switch request.(type) {
	case *Hello, *OpenVolume, *ConfigureDataPath:
	default:
		m.failed = true
	}
}

var source = netip.MustParseAddr("192.0.2.1")

func drawRequest(t *rapid.T, m *model) Message {
	kinds := []Kind{KindOpenVolume, KindConfigureDataPath, KindStartDataPathConnections,
		KindStartStorage, KindStop, KindDestroyObjects}
	if m.target {
		kinds = append(kinds, KindCreateRDMAConnection, KindCreateRDMAConnection)
	}
	if rapid.IntRange(0, 9).Draw(t, "greeting") == 0 {
		kinds = []Kind{KindHello}
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case KindHello:
		if m.target {
			return &Hello{Role: RoleRelay}
		}
		return &Hello{Role: RoleInitiator}
	case KindOpenVolume:
		return &OpenVolume{}
	case KindConfigureDataPath:
		return &ConfigureDataPath{QueueCount: rapid.Uint32Range(1, 2).Draw(t, "queues")}
	case KindCreateRDMAConnection:
		role := rapid.SampledFrom([]iomsg.ConnectionRole{iomsg.ControlConnection,
			iomsg.DataConnection}).Draw(t, "role")
		return &CreateRDMAConnection{Queue: rapid.Uint32Range(0, 2).Draw(t, "queue"), Role: role,
			Source: source}
	case KindStartDataPathConnections:
		return &StartDataPathConnections{ConsumerIDs: make([]uint32, rapid.IntRange(1, 2).Draw(t,
			"consumers"))}
	case KindStartStorage:
		return &StartStorage{}
	case KindStop:
		return &Stop{}
	}
	return &DestroyObjects{}
}

// replyTo returns a reply that fits.
func replyTo(request Message) Message {
	switch r := request.(type) {
	case *Hello:
		return &HelloReply{}
	case *OpenVolume:
		return &OpenVolumeReply{}
	case *ConfigureDataPath:
		return &ConfigureDataPathReply{}
	case *CreateRDMAConnection:
		return &CreateRDMAConnectionReply{}
	case *StartDataPathConnections:
		return &StartDataPathConnectionsReply{ConsumerIDs: r.ConsumerIDs}
	case *StartStorage:
		return &StartStorageReply{}
	case *Stop:
		return &StopReply{}
	}
	return &DestroyObjectsReply{}
}

func TestRequestsAreAcceptedExactlyInTheOrderOfTheProtocol(t *testing.T) {
	for _, c := range []*conversation{&initiatorToRelay, &relayToTarget} {
		t.Run(c.requester.String()+" to "+c.responder.String(), func(t *testing.T) {
			seedtest.Check(t, func(t *rapid.T) {
				machine, model := newMachine(c), model{target: c == &relayToTarget}
				greeting := Message(&Hello{Role: c.requester})
				for range rapid.IntRange(1, 40).Draw(t, "requests") {
					request := greeting
					if model.greeted || rapid.IntRange(0, 3).Draw(t, "no greeting") == 0 {
						request = drawRequest(t, &model)
					}
					followOneRequest(t, &machine, &model, request)
				}
			})
		})
	}
}

func followOneRequest(t *rapid.T, machine *machine, model *model, request Message) {
	before := machine.phase()
	err := machine.begin(request)
	if want := model.accepts(request); (err == nil) != want {
		t.Fatalf("%v in phase %v: %v, the model accepts it: %t", request.Kind(), before, err, want)
	}
	if err != nil {
		if machine.phase() != before {
			t.Fatalf("a rejected %v led from phase %v to %v", request.Kind(), before,
				machine.phase())
		}
		return
	}
	if second := machine.begin(request); !errors.Is(second, status.BadState) &&
		!errors.Is(second, status.Unexpected) {
		t.Fatalf("a second request while %v is outstanding: %v", request.Kind(), second)
	}
	if rapid.IntRange(0, 7).Draw(t, "outcome") == 0 {
		machine.fail()
		model.fail(request)
		return
	}
	if err := machine.succeed(replyTo(request)); err != nil {
		t.Fatalf("reply to %v: %v", request.Kind(), err)
	}
	model.succeed(request)
}

func TestOnlyTheReplyOfARequestAnswersIt(t *testing.T) {
	replies := []Message{
		&HelloReply{}, &OpenVolumeReply{}, &ConfigureDataPathReply{}, &StopReply{},
		&KeepAlive{}, &OpenVolume{}, &DestroyObjectsReply{},
	}
	for _, reply := range replies {
		m := newMachine(&initiatorToRelay)
		if err := m.succeed(reply); !errors.Is(err, status.BadState) {
			t.Errorf("%v without request: %v", reply.Kind(), err)
		}
		if err := m.begin(&Hello{Role: RoleInitiator}); err != nil {
			t.Fatal(err)
		}
		err := m.succeed(reply)
		if reply.Kind() == KindHelloReply {
			if err != nil {
				t.Errorf("%v after hello: %v", reply.Kind(), err)
			}
			continue
		}
		if !errors.Is(err, status.Unexpected) || m.phase() != PhaseHello {
			t.Errorf("%v after hello: %v, phase %v", reply.Kind(), err, m.phase())
		}
	}
}

func TestARelayMustNameOneConsumerPerQueue(t *testing.T) {
	m := newMachine(&initiatorToRelay)
	for _, request := range []Message{&Hello{Role: RoleInitiator}, &OpenVolume{},
		&ConfigureDataPath{QueueCount: 2}} {
		if err := errors.Join(m.begin(request), m.succeed(replyTo(request))); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.begin(&StartDataPathConnections{ConsumerIDs: []uint32{1, 2}}); err != nil {
		t.Fatal(err)
	}
	if err := m.succeed(&StartDataPathConnectionsReply{ConsumerIDs: []uint32{1}}); !errors.Is(err,
		status.InvalidValue) {
		t.Errorf("one consumer for two queues: %v", err)
	}
}

func TestAHelloOfTheWrongRoleIsUnexpected(t *testing.T) {
	for _, c := range []*conversation{&initiatorToRelay, &relayToTarget} {
		for role := RoleInitiator; role <= RoleTarget; role++ {
			m := newMachine(c)
			err := m.begin(&Hello{Role: role})
			if (err == nil) != (role == c.requester) ||
				(err != nil && !errors.Is(err, status.Unexpected)) {
				t.Errorf("the %v gets the hello of the %v: %v", c.responder, role, err)
			}
		}
	}
}

func TestErrorsNameThePhaseOfTheOutstandingRequest(t *testing.T) {
	m := newMachine(&initiatorToRelay)
	for _, request := range []Message{&Hello{Role: RoleInitiator}, &OpenVolume{},
		&ConfigureDataPath{QueueCount: 1},
		&StartDataPathConnections{ConsumerIDs: []uint32{1}}} {
		if err := errors.Join(m.begin(request), m.succeed(replyTo(request))); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.begin(&StartStorage{}); err != nil {
		t.Fatal(err)
	}
	if m.phase() != PhaseStartStorage {
		t.Errorf("phase %v during start_storage", m.phase())
	}
	if err := m.succeed(&StartStorageReply{}); err != nil || m.phase() != PhaseRunning {
		t.Errorf("after start_storage: phase %v, %v", m.phase(), err)
	}
}

// repliedBy returns the reply that the compiler ties to a request.
func repliedBy[R Message](RequestFor[R]) Kind {
	var reply R
	return reply.Kind()
}

func TestEveryRequestIsTiedToTheReplyThatAnswersIt(t *testing.T) {
	replies := map[Kind]Kind{
		KindHello: repliedBy(&Hello{}), KindOpenVolume: repliedBy(&OpenVolume{}),
		KindConfigureDataPath:        repliedBy(&ConfigureDataPath{}),
		KindCreateRDMAConnection:     repliedBy(&CreateRDMAConnection{}),
		KindStartDataPathConnections: repliedBy(&StartDataPathConnections{}),
		KindStartStorage:             repliedBy(&StartStorage{}), KindStop: repliedBy(&Stop{}),
		KindDestroyObjects: repliedBy(&DestroyObjects{}),
	}
	for _, s := range relayToTarget.steps {
		if replies[s.request] != s.request.reply() {
			t.Errorf("%v is tied to %v, the machine accepts %v", s.request, replies[s.request],
				s.request.reply())
		}
	}
}

func TestConnectionsBelongToTheQueuesOfTheSession(t *testing.T) {
	m := newMachine(&relayToTarget)
	pass := func(request Message) {
		t.Helper()
		if err := m.begin(request); err != nil {
			t.Fatal(err)
		}
		if err := m.succeed(replyTo(request)); err != nil {
			t.Fatal(err)
		}
	}
	reject := func(request Message, code status.Code) {
		t.Helper()
		if err := m.begin(request); !errors.Is(err, code) {
			t.Errorf("%+v: %v, want %v", request, err, code)
		}
	}
	connection := func(queue uint32, role iomsg.ConnectionRole) *CreateRDMAConnection {
		return &CreateRDMAConnection{Queue: queue, Role: role, Source: source}
	}
	const queues = 2
	pass(&Hello{Role: RoleRelay})
	pass(&OpenVolume{})
	pass(&ConfigureDataPath{QueueCount: queues})
	for queue := range uint32(queues) {
		for role := range iomsg.ConnectionRoleCount {
			reject(connection(queues, role), status.InvalidValue)
			reject(&StartDataPathConnections{}, status.BadState)
			pass(connection(queue, role))
			reject(connection(queue, role), status.AlreadyExist)
		}
	}
	pass(&StartDataPathConnections{})
}
