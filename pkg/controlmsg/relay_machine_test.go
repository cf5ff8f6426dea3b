package controlmsg_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// relaySession is a relay between a client and a target.
type relaySession struct {
	client  *controlmsg.Requester // the client's own end
	server  *controlmsg.Responder
	target  *controlmsg.Requester
	machine *controlmsg.RelayMachine
}

func newRelaySession(t *testing.T) *relaySession {
	t.Helper()
	near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	s := &relaySession{server: controlmsg.NewResponder(far, asRelay)}
	t.Cleanup(func() { s.server.Close(nil) })
	s.target = newRequester(t, asRelay, controlmsgtest.Serve(t, asTarget, acceptAll()))
	s.machine = controlmsg.NewRelayMachine(s.server, s.target)
	s.client = controlmsg.NewRequester(near, asInitiator)
	t.Cleanup(func() { s.client.Close(nil) })
	opened := make(chan error)
	go func() {
		_, err := s.client.Greet(t.Context())
		if err == nil {
			_, err = s.client.Call(t.Context(), &controlmsg.OpenVolume{})
		}
		opened <- err
	}()
	s.pass(t, nil)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	return s
}

// pass relays one request of the client: it asks the target for everything
// that stands for it and answers. early is called before the target is asked.
func (s *relaySession) pass(t *testing.T, early func(request controlmsg.Request, reply controlmsg.Message)) {
	t.Helper()
	request := next(t, s.server)
	reply, err := acceptAll()(request.Message)
	if err != nil {
		t.Fatal(err)
	}
	if early != nil {
		early(request, reply)
	}
	for _, onward := range onwards(request.Message) {
		if _, err := s.machine.Call(t.Context(), onward); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.machine.Reply(t.Context(), request.Correlation, reply); err != nil {
		t.Fatal(err)
	}
}

func onwards(request controlmsg.Message) []controlmsg.Message {
	whole := session(1)
	switch request.Kind() {
	case controlmsg.KindStartDataPathConnections:
		return whole[2:5]
	case controlmsg.KindOpenVolume:
		return whole[:1]
	}
	for _, m := range whole {
		if m.Kind() == request.Kind() {
			return []controlmsg.Message{m}
		}
	}
	return nil
}

func TestARelayPromisesNothingThatItsTargetHasNot(t *testing.T) {
	s := newRelaySession(t)
	requests := []controlmsg.Message{configuration(1), &controlmsg.StartDataPathConnections{ConsumerIDs: []uint32{1}},
		&controlmsg.StartStorage{}, &controlmsg.Stop{}, &controlmsg.DestroyObjects{}}
	for _, request := range requests {
		called := make(chan error)
		go func() {
			_, err := s.client.Call(t.Context(), request)
			called <- err
		}()
		s.pass(t, func(r controlmsg.Request, reply controlmsg.Message) {
			if err := s.machine.Reply(t.Context(), r.Correlation, reply); err != nil {
				checkError(t, "early reply", err, status.BadState, r.Message.Kind().String()+" cannot be answered with success")
				return
			}
			t.Errorf("%v was answered before the target was asked", r.Message.Kind())
		})
		if err := <-called; err != nil {
			t.Fatal(err)
		}
	}
}

func TestARelayAsksItsTargetOnlyOnBehalfOfItsClient(t *testing.T) {
	s := newRelaySession(t)
	for _, request := range session(1)[1:6] {
		_, err := s.machine.Call(t.Context(), request)
		checkError(t, request.Kind().String(), err, status.BadState, "only while the client asks")
	}
	if _, err := s.machine.Call(t.Context(), &controlmsg.DestroyObjects{}); err != nil {
		t.Errorf("destroy_objects at any time: %v", err)
	}
}

func TestATargetThatIsGoneHasNothingLeftToDestroy(t *testing.T) {
	s := newRelaySession(t)
	called := make(chan error)
	go func() {
		_, err := s.client.Call(t.Context(), configuration(1))
		if err == nil {
			_, err = s.client.Call(t.Context(), &controlmsg.DestroyObjects{})
		}
		called <- err
	}()
	s.pass(t, nil)
	request := next(t, s.server)
	err := s.machine.Reply(t.Context(), request.Correlation, &controlmsg.DestroyObjectsReply{})
	checkError(t, "early reply", err, status.BadState, "phase configure_data_path")
	s.target.Close(nil)
	if err := s.machine.Reply(t.Context(), request.Correlation, &controlmsg.DestroyObjectsReply{}); err != nil {
		t.Error(err)
	}
	if err := <-called; err != nil {
		t.Error(err)
	}
}
