// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
)

// TestNothingTakesEffectAfterItsOwnerHasEnded draws what the network, clients, the relay, the
// target, and its disk do, in any order. The network keeps the order of each connection, and
// nothing else. Changes of a session arrive at any time after it has begun.
func TestNothingTakesEffectAfterItsOwnerHasEnded(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":                func(*rapid.T) {},
			"time passes":     w.passTime,
			"ask":             w.ask,
			"question":        w.deliverQuestion,
			"look at clients": func(*rapid.T) { w.lessee.verifyClients() },
			"answer":          w.answer,
			"answer arrives":  w.deliverAnswer,
			"reconnect":       w.reconnect,
			"begin session":   w.begin,
			"client dies":     w.clientDies,
			"relay ends":      w.relayEnds,
			"relay tells":     w.relayTells,
			"change arrives":  w.change,
			"change finishes": w.finish,
			"target closes":   w.targetCloses,
			"newcomer":        w.newcomerCalls,
			"newcomer waits":  w.newcomerWaits,
		})
	})
}

type world struct {
	now    int64 // of the target's clock; the relay's is a hundredth faster or slower
	rate   float64
	lessor *Lessor
	lessee *Lessee

	links  []*wire
	owners []*owner
	call   *rollCall // of a newcomer, and whose clients had died when it began
	former []*owner
}

// wire is a connection with what is on the way in either direction.
type wire struct {
	tenancy   *Tenancy
	conn      *Connection
	questions []Question
	answers   []Answer
}

// owner is a client with a session.
type owner struct {
	relaySession *RelaySession
	session      *Session
	dead         bool // the client has ended
	ended        bool // the relay has ended the session
	told         bool // the client has been told that its changes have failed
	superseded   bool // a newcomer has been told of success
	inFlight     int
	closed       bool
}

func newWorld(t *rapid.T) *world {
	rates := []float64{0.991, 1, 1.009}
	w := &world{now: int64(time.Hour), rate: rapid.SampledFrom(rates).Draw(t, "rate")}
	w.lessor = NewLessor(time.Second, func() int64 { return w.now })
	w.lessee = NewLessee(func() int64 { return int64(w.rate * float64(w.now)) }, func() {
		for _, o := range w.owners {
			if o.dead {
				o.relaySession.End()
			}
		}
	})
	w.links = []*wire{w.connect(), w.connect()}
	return w
}

func (w *world) connect() *wire {
	tenancy := w.lessor.Connect(func() {})
	return &wire{tenancy: tenancy, conn: w.lessee.Connect(7, nil, time.Second,
		tenancy.Question().Number, func() {})}
}

func pick[T any](t *rapid.T, from []T, name string, suits func(T) bool) T {
	var suitable []T
	for _, one := range from {
		if suits(one) {
			suitable = append(suitable, one)
		}
	}
	if len(suitable) == 0 {
		t.Skip("there is no such", name)
	}
	return rapid.SampledFrom(suitable).Draw(t, name)
}

func (w *world) passTime(t *rapid.T) {
	ms := rapid.SampledFrom([]int64{1, 10, 100, 300, 1000, 1011, 3000}).Draw(t, "ms")
	w.now += ms * int64(time.Millisecond)
}

func (w *world) ask(t *rapid.T) {
	l := pick(t, w.links, "connection", func(l *wire) bool { return len(l.questions) < 5 })
	l.questions = append(l.questions, l.tenancy.Question())
}

func (w *world) deliverQuestion(t *rapid.T) {
	l := pick(t, w.links, "connection", func(l *wire) bool { return len(l.questions) > 0 })
	l.conn.Hear(&l.questions[0])
	l.questions = l.questions[1:]
}

func (w *world) answer(t *rapid.T) {
	l := pick(t, w.links, "connection", func(l *wire) bool { return len(l.answers) < 5 })
	l.answers = append(l.answers, l.conn.Answer())
}

func (w *world) deliverAnswer(t *rapid.T) {
	l := pick(t, w.links, "connection", func(l *wire) bool { return len(l.answers) > 0 })
	if err := l.tenancy.Hear(&l.answers[0]); err != nil {
		t.Fatal(err)
	}
	l.answers = l.answers[1:]
}

// reconnect replaces a connection, with what is on the way there.
func (w *world) reconnect(t *rapid.T) {
	i := rapid.IntRange(0, len(w.links)-1).Draw(t, "connection")
	w.links[i].conn.Disconnect()
	w.links[i].tenancy.Disconnect()
	w.links[i] = w.connect()
}

// begin opens a session with a request that arrives at once.
func (w *world) begin(t *rapid.T) {
	if len(w.owners) == 8 {
		t.Skip("there are enough")
	}
	l := rapid.SampledFrom(w.links).Draw(t, "connection")
	if len(l.answers) > 0 {
		t.Skip("the request would be behind them")
	}
	o := &owner{relaySession: l.conn.Begin(Place{})}
	a := l.conn.AnswerNow()
	if err := l.tenancy.Hear(&a); err != nil {
		t.Fatal(err)
	}
	var err error
	o.session, err = l.tenancy.Open(o.relaySession.Number(), func(error) {}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	w.owners = append(w.owners, o)
}

func (w *world) clientDies(t *rapid.T) {
	pick(t, w.owners, "client", func(o *owner) bool { return !o.dead }).dead = true
}

func (w *world) relayEnds(t *rapid.T) {
	o := pick(t, w.owners, "session", func(o *owner) bool { return !o.ended })
	o.ended = true
	o.relaySession.End()
}

func (w *world) relayTells(t *rapid.T) {
	o := pick(t, w.owners, "ended session", func(o *owner) bool { return o.ended && !o.told })
	if o.told, _ = o.relaySession.isSettled(); !o.told {
		return
	}
	select {
	case <-o.relaySession.confirmed:
		if o.inFlight > 0 {
			t.Fatalf("an end is confirmed with %d changes in flight", o.inFlight)
		}
	default: // the network was gone for as long as a lease; what the disk had then is not covered
	}
}

func (w *world) change(t *rapid.T) {
	o := pick(t, w.owners, "session", func(o *owner) bool { return !o.closed })
	if o.session.Check(w.now) != Valid {
		return
	}
	if o.told || o.superseded {
		t.Fatalf("a change passes after the session's end (told %v, superseded %v)", o.told,
			o.superseded)
	}
	o.inFlight++
}

func (w *world) finish(t *rapid.T) {
	pick(t, w.owners, "session", func(o *owner) bool { return o.inFlight > 0 }).inFlight--
}

func (w *world) targetCloses(t *rapid.T) {
	o := pick(t, w.owners, "session",
		func(o *owner) bool { return !o.closed && o.inFlight == 0 && o.session.ended.Load() })
	o.closed = true
	o.session.Close()
}

// newcomerCalls is the beginning of an open that somebody has asked for after clients have died.
func (w *world) newcomerCalls(t *rapid.T) {
	if w.call != nil {
		t.Skip("one at a time")
	}
	var sessions []*Session
	w.former = nil
	for _, o := range w.owners {
		if o.closed {
			continue
		}
		sessions = append(sessions, o.session)
		if o.dead || o.ended {
			w.former = append(w.former, o)
		}
	}
	w.call = w.lessor.call(sessions)
}

// newcomerWaits is the end of the roll call, and the wait for the changes of ended sessions.
func (w *world) newcomerWaits(t *rapid.T) {
	if w.call == nil {
		t.Skip("there is none")
	}
	if heard, _ := w.call.next(); heard != nil {
		t.Skip("not over")
	}
	for _, o := range w.former {
		if !o.session.ended.Load() {
			t.Fatal("the roll call has missed a session that had ended before")
		}
		if o.inFlight > 0 {
			t.Skip("changes are in flight")
		}
	}
	for _, o := range w.former {
		o.superseded = true
	}
	w.call = nil
}
