// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// model predicts what acknowledgedWrites reports by remembering every single write.
type model struct {
	t       *rapid.T
	writes  acknowledgedWrites
	queues  []*queueWrites
	current *sessionID
	// open holds, for each queue, the numbers of the completed writes that no flush has made
	// durable.
	open   []map[uint64]bool
	users  []*Flusher // first one for each queue
	seen   []int      // losses that each user's flushes have reported
	losses int
	// reported is how many losses some flush has reported.
	reported int
	flushes  []modelFlush // outstanding
}

type modelFlush struct {
	session *sessionID
	cover   []uint64
	covered []map[uint64]bool // for each queue, the open writes when it was submitted
}

func newModel(t *rapid.T, queues int) *model {
	m := &model{t: t, current: &sessionID{number: 1, writeVerifier: 1},
		users: make([]*Flusher, queues), seen: make([]int, queues)}
	for i := range queues {
		w := &queueWrites{}
		m.users[i] = &Flusher{}
		w.session.Store(m.current)
		m.queues = append(m.queues, w)
		m.open = append(m.open, map[uint64]bool{})
	}
	m.writes.queues = m.queues
	return m
}

// acknowledge completes a write of queue i. The queue may still be in a session that has ended, if
// the response arrived before the end.
func (m *model) acknowledge(i int) {
	n := m.queues[i].acknowledged.Add(1)
	m.open[i][n] = true
}

// change begins another session, with the same target or a restarted one.
func (m *model) change(restarted bool) {
	next := *m.current
	next.number++
	if restarted {
		next.writeVerifier++
	}
	m.current = &next
}

// lose counts a loss if the target restarted between two sessions while queue i had open writes.
func (m *model) lose(i int, from, to *sessionID) {
	if from.writeVerifier != to.writeVerifier && len(m.open[i]) > 0 {
		m.losses++
		clear(m.open[i])
	}
}

// switchSession moves queue i to the current session.
func (m *model) switchSession(i int) {
	q := m.queues[i]
	m.lose(i, q.session.Load(), m.current)
	m.writes.switchSession(q, m.current)
}

// join adds a user, who learns of no loss before the current session.
func (m *model) join() {
	m.loseAll(m.current)
	f := &Flusher{}
	m.writes.join(f, m.current)
	m.users, m.seen = append(m.users, f), append(m.seen, m.losses)
}

// loseAll counts the losses of queues that have not switched to a session yet.
func (m *model) loseAll(to *sessionID) {
	for i, q := range m.queues {
		if from := q.session.Load(); from.number < to.number {
			m.lose(i, from, to)
		}
	}
}

// attempt submits a flush of a user on queue i, whose outcome reaches the user or not.
func (m *model) attempt(i, user int, reaches bool) {
	q, f := m.queues[i], m.users[user]
	m.loseAll(q.session.Load())
	attempt := &Flusher{attempt: f, seen: m.writes.lossesKnownTo(f)}
	err := m.writes.beginFlush(q, attempt, make([]uint64, len(m.queues)))
	if (err != nil) != (m.seen[user] != m.losses) {
		m.t.Fatalf("an attempt of user %d after %d of %d losses: %v", user, m.seen[user], m.losses,
			err)
	}
	if reaches {
		m.writes.inform(f, attempt)
		m.inform(user)
	}
}

// inform notes that a user has got the outcome of a flush.
func (m *model) inform(user int) {
	if m.seen[user] != m.losses {
		m.seen[user], m.reported = m.losses, m.losses
	}
}

// submit submits a flush of a user on queue i. The flush must report every loss that this user's
// flushes have not reported yet.
func (m *model) submit(i, user int) {
	q := m.queues[i]
	session := q.session.Load()
	f := modelFlush{session: session, cover: make([]uint64, len(m.queues))}
	m.loseAll(session)
	for j := range m.queues {
		covered := map[uint64]bool{}
		for n := range m.open[j] {
			covered[n] = true
		}
		f.covered = append(f.covered, covered)
	}
	err := m.writes.beginFlush(q, m.users[user], f.cover)
	if m.seen[user] != m.losses {
		if !errors.Is(err, ErrWritesLost) || !errors.Is(err, status.IOFailed) {
			m.t.Fatalf("a flush on queue %d does not report %d losses: %v", i,
				m.losses-m.seen[user], err)
		}
		m.inform(user)
		return
	}
	if err != nil {
		m.t.Fatalf("a flush on queue %d reports a loss that did not happen: %v", i, err)
	}
	m.flushes = append(m.flushes, f)
}

// complete completes flush i.
func (m *model) complete(i int, success bool) {
	f := m.flushes[i]
	m.flushes = append(m.flushes[:i], m.flushes[i+1:]...)
	if !success {
		return
	}
	m.writes.completeFlush(f.cover)
	for j := range m.open {
		for n := range f.covered[j] {
			delete(m.open[j], n)
		}
	}
}

func TestFlushesReportEveryLossOnceAndNothingElse(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		m := newModel(t, rapid.IntRange(1, 4).Draw(t, "queues"))
		queue := rapid.IntRange(0, len(m.queues)-1)
		t.Repeat(map[string]func(*rapid.T){
			"acknowledge":    func(t *rapid.T) { m.acknowledge(queue.Draw(t, "queue")) },
			"switch session": func(t *rapid.T) { m.switchSession(queue.Draw(t, "queue")) },
			"join":           func(*rapid.T) { m.join() },
			"flush": func(t *rapid.T) {
				i := queue.Draw(t, "queue")
				m.submit(i, rapid.SampledFrom([]int{i, len(m.users) - 1}).Draw(t, "user"))
			},
			"attempt": func(t *rapid.T) {
				m.attempt(queue.Draw(t, "queue"), len(m.users)-1, rapid.Bool().Draw(t, "reaches"))
			},
			"restart":   func(*rapid.T) { m.change(true) },
			"reconnect": func(*rapid.T) { m.change(false) },
			"complete": func(t *rapid.T) {
				if len(m.flushes) == 0 {
					t.Skip("no flush is outstanding")
				}
				i := rapid.IntRange(0, len(m.flushes)-1).Draw(t, "flush")
				m.complete(i, rapid.Bool().Draw(t, "success"))
			},
			"": func(t *rapid.T) {
				if err := m.writes.unreported(); (err != nil) != (m.reported != m.losses) {
					t.Fatalf("%d of %d losses were reported, unreported returned %v",
						m.reported, m.losses, err)
				}
			},
		})
	})
}
