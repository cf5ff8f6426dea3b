// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// virtualTime is the clock of a synctest bubble.
func virtualTime() int64 { return time.Now().UnixNano() }

// rig is a relay with one connection to a target.
type rig struct {
	lessor  *Lessor
	lessee  *Lessee
	tenancy *Tenancy
	conn    *Connection
	dead    map[*RelaySession]bool // sessions whose clients have gone
	look    time.Duration          // what a look at all clients takes
	asks    int                    // calls of announce, on either side
	answers atomic.Int64
}

func newRig() *rig {
	r := &rig{dead: make(map[*RelaySession]bool)}
	r.lessor = NewLessor(time.Second, virtualTime)
	r.lessee = NewLessee(virtualTime, func() {
		time.Sleep(r.look)
		for h := range r.dead {
			h.End()
		}
	})
	r.tenancy = r.lessor.Connect(func() { r.asks++ })
	r.conn = r.lessee.Connect(7, nil, r.lessor.Length(), r.tenancy.Question().Number,
		func() { r.answers.Add(1) })
	return r
}

// exchange carries a question to the relay and its answer to the target.
func (r *rig) exchange(t *testing.T) {
	t.Helper()
	q := r.tenancy.Question()
	r.conn.Hear(&q)
	a := r.conn.AnswerNow()
	r.hear(t, &a)
}

func (r *rig) hear(t *testing.T, a *Answer) {
	t.Helper()
	if err := r.tenancy.Hear(a); err != nil {
		t.Fatalf("hear %+v: %v", a, err)
	}
}

// open opens a session on both sides. The reasons for its end arrive on the channel.
func (r *rig) open(t *testing.T) (*RelaySession, *Session, chan error) {
	t.Helper()
	r.exchange(t)
	h := r.conn.Begin(Place{UUID: [16]byte{1}, Sole: "lock"})
	ended := make(chan error, 8)
	s, err := r.tenancy.Open(h.Number(), func(err error) { ended <- err }, func() {})
	if err != nil {
		t.Fatal(err)
	}
	return h, s, ended
}

func check(t *testing.T, s *Session, want Verdict) {
	t.Helper()
	if got := s.Check(virtualTime()); got != want {
		t.Errorf("the verdict is %d, want %d", got, want)
	}
}

// isSettled reports whether Await returns now.
func isSettled(h *RelaySession) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	return h.Await(ctx, func() {}) == nil
}

func TestALeaseCountsFromTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		_, s, _ := r.open(t)
		check(t, s, Valid)
		time.Sleep(600 * time.Millisecond)
		q := r.tenancy.Question()
		r.conn.Hear(&q)
		a := r.conn.AnswerNow()
		time.Sleep(900 * time.Millisecond) // the network holds the answer
		check(t, s, Parked)
		r.hear(t, &a)
		check(t, s, Valid)
		time.Sleep(100*time.Millisecond + 1)
		check(t, s, Parked)
		r.hear(t, &a) // once more
		check(t, s, Parked)
	})
}

func TestAnAnswerResumesWhatIsParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.exchange(t)
		resumed := 0
		s, err := r.tenancy.Open(1, func(error) {}, func() { resumed++ })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		r.exchange(t)
		if resumed > 0 {
			t.Error("nothing was parked, and is resumed")
		}
		time.Sleep(2 * time.Second)
		check(t, s, Parked)
		check(t, s, Parked)
		r.exchange(t)
		if resumed != 1 {
			t.Errorf("resumed %d times, want once", resumed)
		}
		check(t, s, Valid)
	})
}

func TestWhatAnAnswerNamesEndsBeforeItCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		h, s, ended := r.open(t)
		h.End()
		if r.answers.Load() == 0 {
			t.Error("the relay does not tell the target at once")
		}
		check(t, s, Valid) // the target does not know
		r.exchange(t)
		check(t, s, Ended)
		if err := <-ended; !errors.Is(err, status.ConnectionReset) {
			t.Errorf("the session has ended with %v", err)
		}
		if isSettled(h) {
			t.Error("the relay takes the end for confirmed while the target has IO in flight")
		}
		q := r.tenancy.Question()
		r.conn.Hear(&q)
		time.Sleep(time.Hour) // the IO hangs; the target has said that it knows
		if isSettled(h) {
			t.Error("the relay takes the end for confirmed although it knows that it is not")
		}
		a := r.conn.Answer()
		if len(a.Ended) != 0 || len(a.Awaited) != 1 {
			t.Errorf("the relay answers %+v after the target has noted the end", a)
		}
		r.hear(t, &a)
		asks := r.asks
		s.Close()
		if r.asks == asks {
			t.Error("the target does not tell the relay at once")
		}
		q = r.tenancy.Question()
		r.conn.Hear(&q)
		if !isSettled(h) {
			t.Error("the relay does not know that the end is confirmed")
		}
		if a = r.conn.Answer(); len(a.Awaited) != 0 {
			t.Errorf("the relay still waits for %v", a.Awaited)
		}
	})
}

func TestARelayWaitsOutTheLastLeaseThatDidNotNameTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		h, _, _ := r.open(t)
		time.Sleep(300 * time.Millisecond)
		h.End() // and the network is gone
		time.Sleep(709 * time.Millisecond)
		if isSettled(h) {
			t.Error("the relay does not wait for a lease that may still last")
		}
		time.Sleep(2 * time.Millisecond)
		if !isSettled(h) {
			t.Error("the relay waits longer than any lease lasts")
		}
		if a := r.conn.Answer(); len(a.Ended) != 1 {
			t.Error("the session is not named any more, although the target may have it")
		}
	})
}

// TestAQuestionIsAnsweredOnlyAfterALookAtAllClients is about a client that has gone while its relay
// was frozen.
func TestAQuestionIsAnsweredOnlyAfterALookAtAllClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		h, s, _ := r.open(t)
		time.Sleep(time.Second)
		r.dead[h] = true
		q := r.tenancy.Question()
		r.conn.Hear(&q)
		a := r.conn.Answer() // as a keep-alive that is due, before Run has looked
		if a.Question >= q.Number {
			t.Error("a question is answered before anybody has looked at the clients")
		}
		r.hear(t, &a)
		a = r.conn.AnswerNow()
		if a.Question != q.Number || len(a.Ended) != 1 {
			t.Errorf("the answer is %+v, want question %d and one session", a, q.Number)
		}
		r.hear(t, &a)
		check(t, s, Ended)
	})
}

func TestRunAnswersQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		stop := r.run(t)
		defer stop()
		if r.answers.Load() != 1 || r.conn.Answer().Question == 0 {
			t.Errorf("%d announcements after the first question", r.answers.Load())
		}
	})
}

// TestLooksAtClientsTakeABoundedShareOfTime asks a question each millisecond for a second. Whoever
// opens a volume waits for the answer, so cheap looks come soon; dear ones must not fill a core.
func TestLooksAtClientsTakeABoundedShareOfTime(t *testing.T) {
	for _, test := range []struct {
		look        time.Duration
		least, most int
	}{
		{0, 490, 510},
		{100 * time.Microsecond, 80, 110},
		{500 * time.Microsecond, 15, 25},
		{10 * time.Millisecond, 7, 11}, // as after a long pause of the thread
	} {
		t.Run(test.look.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig()
				r.look = test.look
				stop := r.run(t)
				defer stop()
				first := r.answers.Load()
				for range 1000 {
					time.Sleep(time.Millisecond)
					q := r.tenancy.Question()
					r.conn.Hear(&q)
				}
				synctest.Wait()
				if n := int(r.answers.Load() - first); n < test.least || n > test.most {
					t.Errorf("a thousand questions in a second cause %d looks, want %d to %d", n,
						test.least, test.most)
				}
			})
		})
	}
}

// run lets the relay answer questions until the returned function is called.
func (r *rig) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		r.lessee.Run(ctx)
		close(done)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-done
	}
}

func TestARelayThatCannotNameAllAnswersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var all []*RelaySession
		for range MaxEnded + 1 {
			h, _, _ := r.open(t)
			all = append(all, h)
		}
		for _, h := range all {
			r.dead[h] = true
		}
		q := r.tenancy.Question()
		r.conn.Hear(&q)
		a := r.conn.AnswerNow()
		if a.Question != 0 || len(a.Ended) != MaxEnded {
			t.Errorf("the relay answers question %d and names %d sessions", a.Question, len(a.Ended))
		}
		r.hear(t, &a)
		q = r.tenancy.Question()
		r.conn.Hear(&q) // which notes what was named
		a = r.conn.AnswerNow()
		if a.Question != q.Number || len(a.Ended) != 1 || len(a.Awaited) != MaxEnded {
			t.Errorf("the relay answers question %d of %d, and names %d and %d sessions", a.Question,
				q.Number, len(a.Ended), len(a.Awaited))
		}
	})
}

func TestARollCallEndsTheSessionsOfSilentRelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		_, silent, ended := r.open(t)
		begun := time.Now()
		if err := r.lessor.RollCall(t.Context(), []*Session{silent, nil}); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begun); waited < time.Second || waited > 1100*time.Millisecond {
			t.Errorf("the roll call took %v, want the length of a lease", waited)
		}
		if err := <-ended; !errors.Is(err, status.TimeOut) {
			t.Errorf("the session has ended with %v", err)
		}
		check(t, silent, Ended)
	})
}

// Those who open a volume may have less time than a lease, one after another.
func TestRollCallsContinueWhereTheLastOneHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		_, silent, ended := r.open(t)
		call := func(patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return r.lessor.RollCall(ctx, []*Session{silent})
		}
		begun := time.Now()
		for range 3 {
			if err := call(300 * time.Millisecond); !errors.Is(err, status.TimeOut) {
				t.Errorf("a roll call ends early with %v", err)
			}
		}
		if len(ended) > 0 {
			t.Error("the session ends before the length of a lease")
		}
		if err := call(300 * time.Millisecond); err != nil {
			t.Errorf("the fourth roll call: %v", err)
		}
		// It asks anew, and gives the relay a fifth of the time for that.
		if waited := time.Since(begun); waited < 1100*time.Millisecond ||
			waited > 1110*time.Millisecond || len(ended) != 1 {
			t.Errorf("%d sessions have ended after %v", len(ended), waited)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		_, alive, ended := r.open(t)
		for range 5 { // it answers after each call, and so misses none in a row
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			if err := r.lessor.RollCall(ctx, []*Session{alive}); !errors.Is(err, status.TimeOut) {
				t.Errorf("a roll call ends early with %v", err)
			}
			cancel()
			r.exchange(t)
		}
		if len(ended) > 0 {
			t.Error("a relay that answers has lost its session")
		}
	})
}

func TestARollCallIsOverWhenAllHaveAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		_, s, _ := r.open(t)
		q := r.tenancy.Question() // asked before, and answered during the roll call
		r.conn.Hear(&q)
		time.Sleep(time.Millisecond)
		asks := r.asks
		called := make(chan error, 1)
		go func() { called <- r.lessor.RollCall(t.Context(), []*Session{s}) }()
		synctest.Wait()
		if r.asks == asks {
			t.Error("nobody is asked")
		}
		a := r.conn.AnswerNow()
		r.hear(t, &a)
		synctest.Wait()
		if len(called) > 0 {
			t.Error("the answer to an older question counts")
		}
		r.exchange(t)
		if err := <-called; err != nil {
			t.Error(err)
		}
		check(t, s, Valid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		time.Sleep(time.Millisecond)
		if err := r.lessor.RollCall(ctx, []*Session{s}); !errors.Is(err, status.TimeOut) {
			t.Errorf("a roll call without time ends with %v", err)
		}
	})
}

func TestATargetRejectsAnswersThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		h, s, _ := r.open(t)
		a := r.conn.Answer()
		for name, change := range map[string]func(*Answer){
			"a question to come": func(a *Answer) { a.Question++ },
			"a huge question":    func(a *Answer) { a.Question = 1 << 63 },
			"another instance":   func(a *Answer) { a.Instance[3]++ },
		} {
			bad := a
			change(&bad)
			if err := r.tenancy.Hear(&bad); !errors.Is(err, status.Unexpected) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := r.tenancy.Hear(&Answer{Ended: []uint64{h.Number()}}); err != nil {
			t.Errorf("an answer of nobody: %v", err)
		}
		check(t, s, Valid)
		if _, err := r.tenancy.Open(h.Number(), nil, nil); !errors.Is(err, status.AlreadyExist) {
			t.Errorf("the same session twice: %v", err)
		}
		other := r.lessor.Connect(func() {})
		if _, err := other.Open(1, nil, nil); !errors.Is(err, status.Unexpected) {
			t.Errorf("a session of nobody: %v", err)
		}
	})
}

// TestAnInstanceBelongsToOneRoute meets a process at a second address, where somebody else may
// pretend to be it.
func TestAnInstanceBelongsToOneRoute(t *testing.T) {
	l := NewLessee(virtualTime, func() {})
	connect := func(route string) Instance {
		return l.Connect(7, route, time.Second, 0, func() {}).Answer().Instance
	}
	first := connect("10.0.0.1:7470")
	if connect("10.0.0.1:7470") != first {
		t.Error("connections on one route have two instances")
	}
	if connect("10.0.0.2:7470") == first {
		t.Error("the instance is known at another address")
	}
}

func TestARelayComesBackAsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		h, _, _ := r.open(t)
		first := r.conn.Answer().Instance
		h.End()
		r.conn.Disconnect()
		again := r.lessee.Connect(7, nil, time.Second, 0, func() {})
		if a := again.Answer(); a.Instance != first || len(a.Ended) != 1 {
			t.Errorf("the relay has forgotten a session whose lease may last: %+v", a)
		}
		again.Disconnect()
		time.Sleep(2 * time.Second)
		again = r.lessee.Connect(7, nil, time.Second, 0, func() {})
		if a := again.Answer(); a.Instance == first || len(a.Ended) != 0 {
			t.Errorf("the relay answers for an instance whose sessions it has forgotten: %+v", a)
		}
		h.Confirm() // late, and without effect
		if !isSettled(h) {
			t.Error("a forgotten session is waited for")
		}
	})
}

// A target that has noted the end of a session, and is gone, never confirms it.
func TestARelayDoesNotWaitForATargetThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		h, _, _ := r.open(t)
		h.End()
		r.exchange(t)
		q := r.tenancy.Question()
		r.conn.Hear(&q)
		settled := make(chan error, 1)
		go func() { settled <- h.Await(t.Context(), func() {}) }()
		synctest.Wait()
		r.conn.Disconnect()
		if isSettled(h) {
			t.Error("the relay does not wait for a lease that may still last")
		}
		time.Sleep(WithDrift(time.Second) + askPause)
		synctest.Wait()
		select {
		case err := <-settled:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Fatal("the relay waits for a target that is gone")
		}
	})
}

func TestASessionLivesOnWithoutItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		h, _, _ := r.open(t)
		first := r.conn.Answer().Instance
		r.conn.Disconnect()
		time.Sleep(time.Hour)
		again := r.lessee.Connect(7, nil, time.Second, 0, func() {})
		if again.Answer().Instance != first {
			t.Error("the relay has forgotten a session that has not ended")
		}
		h.End()
		if a := again.Answer(); len(a.Ended) != 1 {
			t.Errorf("the session is not named: %+v", a)
		}
	})
}

func TestAnotherProcessConfirmsWhatHadEndedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		place := Place{UUID: [16]byte{1}, Sole: "lock"}
		h, _, _ := r.open(t)
		r.lessee.Replaced(8, place, r.lessee.Now())
		asked := r.lessee.Now()
		time.Sleep(time.Millisecond)
		h.End()
		for _, other := range []struct {
			why     string
			process uint64
			place   Place
			asked   int64
		}{
			{"the session has not ended when the process was asked", 8, place, asked},
			{"it is the same process", 7, place, r.lessee.Now()},
			{"it does not say who it is", 0, place, r.lessee.Now()},
			{"both may serve the volume", 8, Place{UUID: place.UUID}, r.lessee.Now()},
			{"another lock", 8, Place{UUID: place.UUID, Sole: "other"}, r.lessee.Now()},
			{"another volume", 8, Place{UUID: [16]byte{2}, Sole: place.Sole}, r.lessee.Now()},
			{"another channel", 8, Place{"other", place.UUID, place.Sole}, r.lessee.Now()},
		} {
			if r.lessee.Replaced(other.process, other.place, other.asked); isSettled(h) {
				t.Fatalf("confirmed, although %s", other.why)
			}
		}
		r.lessee.Replaced(8, place, r.lessee.Now())
		if !isSettled(h) {
			t.Error("not confirmed by the process that has replaced the first one")
		}
	})
}

// The storage of a target may never answer it again, so the relay asks others for as long as it
// waits.
func TestARelayThatWaitsAsksAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		if r.lessee.Awaits("", 8) {
			t.Error("the relay waits for nothing")
		}
		h, _, _ := r.open(t)
		h.End()
		if r.lessee.Awaits("", 7) || !r.lessee.Awaits("", 8) || r.lessee.Awaits("other", 8) {
			t.Error("the other process, and nobody else, can confirm the end")
		}
		r.exchange(t)
		q := r.tenancy.Question()
		r.conn.Hear(&q) // which notes the end
		if !r.lessee.Awaits("", 8) {
			t.Error("the relay does not wait any more for what has only been noted")
		}
		time.Sleep(time.Hour) // no lease is left
		ctx, cancel := context.WithTimeout(t.Context(), 5*askPause/2)
		defer cancel()
		asked := 0
		if err := h.Await(ctx, func() { asked++ }); !errors.Is(err, status.TimeOut) {
			t.Errorf("the wait ends with %v", err)
		}
		if asked != 3 {
			t.Errorf("the relay has asked %d times", asked)
		}
		h.Confirm()
		if r.lessee.Awaits("", 8) {
			t.Error("the relay waits for a confirmed end")
		}
	})
}

func TestPeersThatTakeNoPart(t *testing.T) {
	r := newRig()
	for _, conn := range []*Connection{
		r.lessee.Connect(0, nil, time.Second, 1, nil), r.lessee.Connect(9, nil, 0, 1, nil),
	} {
		h := conn.Begin(Place{})
		h.End()
		h.Confirm()
		conn.Hear(&Question{Number: 1})
		conn.Disconnect()
		if a := conn.AnswerNow(); a.Instance != (Instance{}) || h.Number() != 0 || !isSettled(h) {
			t.Errorf("answer %+v, session %d", a, h.Number())
		}
	}
	var s *Session
	s.End()
	s.Close()
	check(t, s, Valid)
}
