// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"path"
	"reflect"
	"runtime"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// callTimeout is longer than every timeout of the daemons.
const callTimeout = 20 * time.Second

// converse starts a conversation over a transport: an orderly one, which sends nothing that is out
// of order, or an unruly one.
func (p *peer) converse(transport controlmsg.Transport, role controlmsg.Role) controlmsg.Caller {
	if p.chance(50) {
		config := controlmsg.EndpointConfig{Role: role, Timeout: callTimeout}
		if role == controlmsg.RoleRelay {
			config.KeepAlive = controlmsg.DefaultKeepAlive()
		}
		return controlmsg.NewRequester(transport, config)
	}
	return &unruly{peer: p, transport: transport, done: make(chan struct{})}
}

// unruly is a requester that sends valid messages in any order.
type unruly struct {
	peer        *peer
	transport   controlmsg.Transport
	correlation uint64
	done        chan struct{}
	ended       bool
}

func (u *unruly) Call(ctx context.Context, request controlmsg.Message) (controlmsg.Message, error) {
	if u.ended {
		return nil, status.NotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if u.peer.random.IntN(50) > 0 {
		u.correlation++ // else zero, or the correlation of the previous request
	}
	packet, err := controlmsg.Encode(
		&controlmsg.Envelope{Correlation: u.correlation, Message: request})
	if err != nil {
		return nil, err
	}
	if u.peer.random.IntN(60) == 0 {
		packet[u.peer.random.IntN(len(packet))] ^= byte(1 + u.peer.random.IntN(255))
	}
	for range 1 + u.peer.random.IntN(40)/39 { // rarely twice
		if err := u.transport.Send(ctx, packet); err != nil {
			return nil, u.end(err)
		}
	}
	if u.peer.random.IntN(40) == 0 {
		return nil, errors.New("does not wait for the answer")
	}
	for {
		packet, err := u.transport.Receive(ctx)
		if err != nil {
			return nil, u.end(err)
		}
		e, err := controlmsg.Decode(packet)
		if err != nil {
			return nil, u.end(err)
		}
		failure, failed := e.Message.(*controlmsg.Error)
		switch {
		case failed && e.Correlation == 0:
			return nil, u.end(failure)
		case e.Message.Kind() == controlmsg.KindKeepAlive:
		case failed: // also with another correlation, if a bit of the request was flipped
			return nil, failure
		default:
			return e.Message, nil
		}
	}
}

func (u *unruly) end(reason error) error {
	if !u.ended {
		u.ended = true
		close(u.done)
	}
	return reason
}

func (u *unruly) Done() <-chan struct{} { return u.done }

func (u *unruly) Err() error {
	if u.ended {
		return status.NotConnected
	}
	return nil
}

func (u *unruly) Close(error) {
	u.transport.Abort()
	_ = u.end(nil)
}

// sessions runs a few sessions of a peer, one after another.
func (p *peer) sessions(run func()) {
	count, base := 1+p.random.IntN(4), p.random.Uint64()
	for i := range count {
		p.random = rand.New(rand.NewPCG(base, uint64(i)))
		run()
	}
}

// play carries out the steps of a session: those of an orderly one, of which some are missing,
// repeated, or out of order, up to a random end. What a step draws at random depends on the seed
// and on its place, and not on what the daemons have answered before.
func play[S any](p *peer, session S, orderly, extra []func(S)) {
	base := p.random.Uint64()
	for i, step := range script(p.random, orderly, append(slices.Clone(extra), orderly...)) {
		p.random = rand.New(rand.NewPCG(base, uint64(i)))
		started := time.Now()
		step(session)
		if took := time.Since(started); took > 2*controlTimeout {
			name := runtime.FuncForPC(reflect.ValueOf(step).Pointer()).Name()
			p.t.Logf("seed %d: peer %d: %s took %v", p.seed, p.number, path.Base(name), took)
		}
	}
	p.random = rand.New(rand.NewPCG(base, math.MaxUint64))
}

func script[S any](random *rand.Rand, orderly, all []S) []S {
	var steps []S
	disorder := pick(random, 0, 0, 5, 20) // percent
	for _, step := range orderly {
		if random.IntN(100) < 4 {
			break
		}
		for random.IntN(100) < disorder {
			steps = append(steps, pick(random, all...))
		}
		if random.IntN(100) >= disorder/2 {
			steps = append(steps, step)
		}
	}
	return steps
}

// hello returns a valid hello, which need not suit the conversation.
func (p *peer) hello(role controlmsg.Role) *controlmsg.Hello {
	m := &controlmsg.Hello{Role: role, MinVersion: 1, MaxVersion: 1 + p.random.Uint32N(3),
		MaxMessageSize: controlmsg.MinMessageSize + p.random.Uint32N(1<<16),
		Software:       "random peer"}
	if p.chance(5) {
		m.Role = pick(p.random, controlmsg.RoleInitiator, controlmsg.RoleRelay,
			controlmsg.RoleTarget)
	}
	if p.chance(5) {
		m.MinVersion, m.MaxVersion = 2, 7
	}
	if p.chance(30) {
		m.SilenceLimitMs = 100 + p.random.Uint32N(10_000)
	}
	return m
}

// instance returns the peer's client instance, or one of a few that the peers of a burst share.
func (p *peer) instance() (instance [16]byte) {
	binary.BigEndian.PutUint64(instance[:], p.seed)
	instance[8] = byte(1 + p.random.IntN(4))
	if p.chance(75) {
		instance[8] = 0
		binary.BigEndian.PutUint32(instance[12:], p.number)
	}
	return instance
}

// configuration returns sizes of a data path, most of which the daemons accept.
func (p *peer) configuration() *controlmsg.ConfigureDataPath {
	m := &controlmsg.ConfigureDataPath{
		QueueCount: 1 + p.random.Uint32N(4), Depth: 1 + p.random.Uint32N(64),
		BufferSize: blockSize << p.random.IntN(6), ClientInstance: p.instance(),
		Epoch: p.epochs.Add(1),
	}
	if p.chance(5) {
		m.Epoch = p.random.Uint64N(m.Epoch + 1)
	}
	if p.chance(5) {
		m.QueueCount = 1 + p.random.Uint32N(controlmsg.MaxQueues)
	}
	if p.chance(5) {
		m.Depth = 1 + p.random.Uint32N(controlmsg.MaxDepth)
	}
	if p.chance(5) {
		m.BufferSize = 1 + p.random.Uint32N(controlmsg.MaxBufferSize)
	}
	return m
}

// linger keeps a connection open for a while, now and then, or until the daemon ends it.
func (p *peer) linger(end <-chan struct{}) {
	while := pick(p.random, 10*time.Millisecond, 100*time.Millisecond, controlTimeout,
		controlTimeout+time.Second)
	if !p.chance(12) {
		return
	}
	select {
	case <-end:
	case <-p.ctx.Done():
	case <-time.After(while):
	}
}
