// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// sessionCells says what an event makes a session do in the states in which it can occur, and the
// state that follows if the state changes. Names in capitals are requests that the target gets;
// "ends" means that the session begins to end. After that, a request that has begun may go on. What
// makes a session unreleased is an error of a driver.
const sessionCells = `
	volume opens | opening                                               | -            | open
	volume opens | ending unreleased                                     | -            |
	configure    | open                                                  | CONFIGURE    | configured
	start        | configured                                            | START        | started
	start        | ending unreleased                                     | START        |
	stop         | configured started                                    | STOP         | stopping
	stop         | stopping ending unreleased                            | -            |
	destroy      | opening                                               | -            | destroying
	destroy      | open stopping                                         | DESTROY      | destroying
	destroy      | configured started                                    | STOP DESTROY | destroying
	destroy      | destroying ending                                     | DESTROY      |
	destroy      | unreleased                                            | DRIVER       |
	lose target  | open configured started stopping                      | ends         |
	lose target  | destroying ending unreleased released                 | -            |
	lane fails   | configured started stopping                           | ends         |
	lane fails   | destroying ending unreleased released                 | -            |
	end          | opening open configured started stopping              | -            | released
	end          | destroying ending unreleased                          | -            | released
	stuck end    | opening open configured started stopping              | -            | unreleased
	stuck end    | destroying ending                                     | -            | unreleased
	stuck end    | unreleased                                            | -            |
	time passes  | opening open configured started stopping              | -            |
	time passes  | destroying ending released                            | -            |
	time passes  | unreleased                                            | -            | released`

var sessionStates = map[string]sessionState{
	"opening": sessionOpening, "open": sessionOpen, "configured": sessionConfigured,
	"started": sessionStarted, "stopping": sessionStopping, "destroying": sessionDestroying,
	"ending": sessionEnding, "unreleased": sessionUnreleased, "released": sessionReleased,
}

func TestTheLifeOfASession(t *testing.T) {
	for line := range strings.Lines(strings.TrimSpace(sessionCells)) {
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		event, outcome := cells[0], cells[2]
		for state := range strings.FieldsSeq(cells[1]) {
			next := cmp.Or(cells[3], state)
			t.Run(event+" while "+state, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newSessionRig(t, sessionStates[state])
					defer r.close()
					if got := r.session.stage.now(); got != sessionStates[state] {
						t.Fatalf("the session has reached state %d, want %s", got, state)
					}
					if got := r.play(event); got != outcome {
						t.Errorf("the outcome is %q, want %q", got, outcome)
					}
					if got := r.session.stage.now(); got != sessionStates[next] {
						t.Errorf("the state is %d, want %s", got, next)
					}
					if isReleased := next == "released"; r.forgotten != isReleased {
						t.Errorf("the channel has forgotten the session: %v", r.forgotten)
					}
				})
			})
		}
	}
}

// sessionRig is a session without queues, between a client and a target that do what they should.
type sessionRig struct {
	session    *session
	target     *targets.Connection
	peer       *peer
	registered *stuckRegion // the client's memory
	forgotten  bool
	stopLate   context.CancelFunc
}

// newSessionRig returns a session in a state, which it has reached in the usual way.
func newSessionRig(t *testing.T, state sessionState) *sessionRig {
	r := &sessionRig{peer: &peer{done: make(chan struct{})}, registered: &stuckRegion{}}
	r.target = &targets.Connection{Requester: r.peer, Device: idleDevice{},
		Volume: &controlmsg.OpenVolumeReply{}}
	common := &channelCommon{clients: epoch.NewRegistry(epoch.Config{}), log: zap.NewNop(),
		relay: &relayCommon{ends: usualEndTimes}, forget: func(uint64) { r.forgotten = true }}
	common.lateContext, r.stopLate = context.WithCancel(t.Context())
	ctx, cancel := context.WithCancelCause(t.Context())
	r.session = &session{
		channel: common, ctx: ctx, cancel: cancel, log: zap.NewNop(), client: goneClient{},
		connection: importing{Connection: goneConnection{}, region: memory.Wrap(make([]byte, 512))},
		epoch:      epoch.NewSession(cancel),
		announced:  &controlmsg.OpenVolumeReply{MaxQueues: 1, MaxDepth: 1, MaxBufferSize: 512},
		settings: &ChannelConfig{Limits: Limits{MaxExport: 512, MaxOutstanding: 1},
			ControlTimeout: time.Second},
		sessionMemory: sessionMemory{paths: []MemoryPath{PathMapped}, registered: r.registered,
			domain: registering{r.registered}},
	}
	for _, step := range []struct {
		event string
		to    sessionState
	}{
		{"volume opens", sessionOpen}, {"configure", sessionConfigured}, {"start", sessionStarted},
		{"stop", sessionStopping}, {"destroy", sessionDestroying},
	} {
		if state >= step.to {
			r.play(step.event)
		}
	}
	switch state {
	case sessionEnding:
		r.session.stage.note(sessionEnds)
	case sessionUnreleased:
		r.play("stuck end")
	case sessionReleased:
		r.play("end")
	}
	r.peer.requests = nil
	return r
}

// play lets something happen to the session, and returns what the session does.
func (r *sessionRig) play(event string) string {
	s, ctx := r.session, r.session.ctx
	hadEnded := ctx.Err() != nil
	var err error
	switch event {
	case "volume opens":
		s.use(r.target)
	case "configure":
		s.registered, s.domain = nil, nil
		_, err = s.ConfigureDataPath(ctx, &controlmsg.ConfigureDataPath{QueueCount: 1, Depth: 1,
			BufferSize: 512, Epoch: 1, Export: controlmsg.Export{Length: 512}})
		if err == nil {
			r.registered = s.registered.(*stuckRegion)
		}
	case "start":
		err = s.StartStorage(ctx)
	case "stop":
		err = s.Stop(ctx)
	case "destroy":
		_, err = s.DestroyObjects(ctx)
	case "lose target":
		if s.target == nil {
			s.target = r.target
		}
		r.peer.Close(nil)
		s.watchTarget(s.target)
	case "lane fails":
		s.onLaneFailure(0)(status.ConnectionReset)
	case "end":
		r.registered.stuck.Store(false)
		s.end(nil)
	case "stuck end":
		if s.registered == nil {
			s.registered = r.registered
		}
		r.registered.stuck.Store(true)
		s.end(nil)
	case "time passes":
		r.registered.stuck.Store(false)
		time.Sleep(2 * usualEndTimes.pause)
	}
	synctest.Wait()
	switch {
	case err != nil:
		return status.CodeOf(err).String()
	case !hadEnded && ctx.Err() != nil:
		return "ends"
	case len(r.peer.requests) > 0:
		return strings.Join(r.peer.requests, " ")
	}
	return "-"
}

func (r *sessionRig) close() {
	r.session.cancel(nil)
	r.peer.Close(nil)
	r.registered.stuck.Store(false)
	r.stopLate()
	r.session.channel.late.Wait()
}

// peer is a target that does what it is asked to.
type peer struct {
	requests []string
	done     chan struct{}
}

func (p *peer) Call(_ context.Context, request controlmsg.Message) (controlmsg.Message, error) {
	name, reply := "", controlmsg.Message(nil)
	switch request.(type) {
	case *controlmsg.ConfigureDataPath:
		name, reply = "CONFIGURE", &controlmsg.ConfigureDataPathReply{}
	case *controlmsg.StartStorage:
		name, reply = "START", &controlmsg.StartStorageReply{}
	case *controlmsg.Stop:
		name, reply = "STOP", &controlmsg.StopReply{}
	case *controlmsg.DestroyObjects:
		name, reply = "DESTROY", &controlmsg.DestroyObjectsReply{}
	default:
		return nil, fmt.Errorf("unexpected request %T", request)
	}
	p.requests = append(p.requests, name)
	return reply, nil
}

func (p *peer) Done() <-chan struct{} { return p.done }
func (p *peer) Err() error            { return nil }

func (p *peer) Close(error) {
	select {
	case <-p.done:
	default:
		close(p.done)
	}
}

// goneClient and goneConnection are of a client that does not mind their end.
type (
	goneClient     struct{ controlmsg.Server }
	goneConnection struct{ comch.Connection }
)

func (goneClient) Close(error) {}
func (goneConnection) Abort()  {}

// idleDevice is an RDMA device whose memory is registered, and not used.
type idleDevice struct{ rdma.Device }

func (idleDevice) Capabilities() rdma.Capabilities { return rdma.Capabilities{} }

func (idleDevice) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	return registering{&stuckRegion{}}, nil
}

// stuckRegion is memory that a device reaches as long as it is stuck.
type stuckRegion struct {
	rdma.MemoryRegion
	stuck atomic.Bool
}

func (*stuckRegion) RemoteKey() uint32 { return 0 }
func (*stuckRegion) Base() uint64      { return 0 }

func (r *stuckRegion) Deregister() error {
	if r.stuck.Load() {
		return status.Errorf(status.Driver, "made up")
	}
	return nil
}

type registering struct{ region *stuckRegion }

func (r registering) Register(*memory.Region, memory.Access) (rdma.MemoryRegion, error) {
	return r.region, nil
}

func (registering) Close() error { return nil }
