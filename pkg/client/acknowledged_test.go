package client

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// model is what acknowledgedWrites must know, by remembering every write.
type model struct {
	t       *rapid.T
	writes  acknowledgedWrites
	queues  []*Queue
	current *session
	// open are the acknowledged writes of each queue that no flush has made
	// durable, by number.
	open    []map[uint64]bool
	told    []int // losses that each queue's flushes have told
	losses  int
	flushes []modelFlush // outstanding
}

type modelFlush struct {
	session *session
	cover   []uint64
	saves   []map[uint64]bool // for each queue, what was acknowledged before
}

func newModel(t *rapid.T, queues int) *model {
	m := &model{t: t, current: &session{number: 1, info: Info{WriteVerifier: 1}}, told: make([]int, queues)}
	m.writes.durable = make([]uint64, queues)
	for i := range queues {
		q := &Queue{index: i}
		q.session.Store(m.current)
		m.queues = append(m.queues, q)
		m.open = append(m.open, map[uint64]bool{})
	}
	return m
}

// acknowledge has a write of queue i answered, also one of a session that has
// ended: its answer had come before.
func (m *model) acknowledge(i int) {
	n := m.queues[i].acknowledged.Add(1)
	m.open[i][n] = true
}

// change begins another session, with another target or the same.
func (m *model) change(restarted bool) {
	next := &session{number: m.current.number + 1, info: m.current.info}
	if restarted {
		next.info.WriteVerifier++
	}
	m.current = next
}

// lose notes what a restart has made uncertain for queue i.
func (m *model) lose(i int, from, to *session) {
	if from.info.WriteVerifier != to.info.WriteVerifier && len(m.open[i]) > 0 {
		m.losses++
		clear(m.open[i])
	}
}

func (m *model) goOver(i int) {
	q := m.queues[i]
	former := q.session.Load()
	m.lose(i, former, m.current)
	m.writes.switchSession(q, former, m.current)
	q.session.Store(m.current)
}

// submit submits a flush on queue i, which must tell of every loss that this
// queue has not told of.
func (m *model) submit(i int) {
	q := m.queues[i]
	session := q.session.Load()
	f := modelFlush{session: session, cover: make([]uint64, len(m.queues))}
	for j, other := range m.queues {
		if theirs := other.session.Load(); theirs.number < session.number {
			m.lose(j, theirs, session)
		}
		saves := map[uint64]bool{}
		for n := range m.open[j] {
			saves[n] = true
		}
		f.saves = append(f.saves, saves)
	}
	err := m.writes.beginFlush(q, m.queues, f.cover)
	if m.told[i] != m.losses {
		if !errors.Is(err, ErrWritesLost) || !errors.Is(err, status.IOFailed) {
			m.t.Fatalf("a flush on queue %d does not tell of %d losses: %v", i, m.losses-m.told[i], err)
		}
		m.told[i] = m.losses
		return
	}
	if err != nil {
		m.t.Fatalf("a flush on queue %d tells of a loss that there was not: %v", i, err)
	}
	m.flushes = append(m.flushes, f)
}

func (m *model) complete(i int, success bool) {
	f := m.flushes[i]
	m.flushes = append(m.flushes[:i], m.flushes[i+1:]...)
	if !success {
		return
	}
	m.writes.completeFlush(f.cover)
	for j := range m.open {
		for n := range f.saves[j] {
			delete(m.open[j], n)
		}
	}
}

func TestFlushesTellOfEveryLossOnceAndOfNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, rapid.IntRange(1, 4).Draw(t, "queues"))
		queue := rapid.IntRange(0, len(m.queues)-1)
		t.Repeat(map[string]func(*rapid.T){
			"acknowledge": func(t *rapid.T) { m.acknowledge(queue.Draw(t, "queue")) },
			"go over":     func(t *rapid.T) { m.goOver(queue.Draw(t, "queue")) },
			"flush":       func(t *rapid.T) { m.submit(queue.Draw(t, "queue")) },
			"restart":     func(*rapid.T) { m.change(true) },
			"reconnect":   func(*rapid.T) { m.change(false) },
			"complete": func(t *rapid.T) {
				if len(m.flushes) == 0 {
					t.Skip("no flush is outstanding")
				}
				i := rapid.IntRange(0, len(m.flushes)-1).Draw(t, "flush")
				m.complete(i, rapid.Bool().Draw(t, "success"))
			},
			"": func(t *rapid.T) {
				told := 0
				for _, n := range m.told {
					told = max(told, n)
				}
				if err := m.writes.unreported(); (err != nil) != (told != m.losses) {
					t.Fatalf("%d of %d losses were told, at the end that is %v", told, m.losses, err)
				}
			},
		})
	})
}
