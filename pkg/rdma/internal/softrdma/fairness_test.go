// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
)

// sessions returns the domains of so many sessions.
func sessions(n int) []*registration.Domain {
	table := registration.NewTable()
	domains := make([]*registration.Domain, n)
	for i := range domains {
		domains[i] = registration.NewDomain("test", table, func() {})
	}
	return domains
}

func TestQueueYieldsOnlyUnderContention(t *testing.T) {
	domains := sessions(2)
	var fairness [2]Fairness
	var members [2]Member
	for i := range fairness {
		fairness[i].Join(&members[i], domains[i])
	}
	yields := func(i, rounds, bytes int) (count int) {
		for range rounds {
			fairness[i].Count(&members[i], Receiving, bytes)
			if fairness[i].BeginTurn() {
				count++
			}
		}
		return count
	}
	if n := yields(0, 1000, YieldBytes); n != 0 {
		t.Errorf("the only session yielded %d times", n)
	}
	yields(1, 1, 1)
	if n := yields(0, 1000, YieldBytes); n != ContendedYields {
		t.Errorf("the queue yielded %d times after another session was last active, want %d",
			n, ContendedYields)
	}
	for range ContendedYields {
		yields(1, 1, 1)
		if n := yields(0, 40, YieldBytes/4); n != 10 {
			t.Fatalf("next to another session, the queue yielded %d times for %d bytes",
				n, 10*YieldBytes)
		}
	}
}

// TestConnectionsOfASessionShareItsTurn has one session with three connections and another with
// one, which all ask for more than they may move.
func TestConnectionsOfASessionShareItsTurn(t *testing.T) {
	const usual, batch, turns = 1 << 20, LongTurnBytes / 4, 300
	domains := sessions(2)
	var f Fairness
	var members [4]Member
	moved := make(map[*Member]int)
	list := make([]*Member, len(members))
	for i := range members {
		list[i] = &members[i]
		f.Join(&members[i], domains[i/3])
	}
	for range turns {
		f.BeginTurn()
		SortByWait(&f, Transmitting, list, func(m *Member) *Member { return m })
		for _, m := range list {
			for left := f.Allowance(m, Transmitting, usual); left > 0; left -= batch {
				f.Count(m, Transmitting, batch)
				moved[m] += batch
			}
		}
	}
	first := moved[&members[0]] + moved[&members[1]] + moved[&members[2]]
	if second := moved[&members[3]]; first < second*9/10 || first > second*11/10+usual {
		t.Errorf("three connections of one session moved %d bytes, one of another %d", first, second)
	}
	for i := range 3 {
		if bytes := moved[&members[i]]; bytes < first/4 {
			t.Errorf("connection %d moved %d of the %d bytes of its session", i, bytes, first)
		}
	}
}

// contended returns a queue with a session that keeps it busy and one that asks for bytes in a
// turn, after so many turns.
func contended(bytes, turns int) (f *Fairness, busy *Member) {
	domains := sessions(2)
	f, busy = &Fairness{}, &Member{}
	var other Member
	f.Join(busy, domains[0])
	f.Join(&other, domains[1])
	for range turns {
		f.BeginTurn()
		f.Count(&other, Receiving, min(bytes, f.Allowance(&other, Receiving, bytes)))
		f.Count(busy, Receiving, f.Allowance(busy, Receiving, 1<<20))
	}
	f.BeginTurn()
	return f, busy
}

func TestTurnsAreShortBesideALightSession(t *testing.T) {
	for _, c := range []struct {
		name         string
		bytes, turns int
		want         int
	}{
		{"light", 4096, 2 * lightTurns, ShortTurnBytes},
		{"not known yet", 4096, lightTurns / 2, LongTurnBytes},
		{"equal", 1 << 20, 2 * lightTurns, LongTurnBytes},
		{"neither", 2 * ShortTurnBytes, 2 * lightTurns, LongTurnBytes},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, busy := contended(c.bytes, c.turns)
			if got := f.Allowance(busy, Receiving, 1<<20); got != c.want {
				t.Errorf("the busy session may move %d bytes in a turn, want %d", got, c.want)
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		f, busy := contended(4096, 2*lightTurns)
		for range lightTurns {
			f.BeginTurn()
		}
		if got := f.Allowance(busy, Receiving, 1<<20); got != LongTurnBytes {
			t.Errorf("long after the light session, the other may move %d bytes in a turn", got)
		}
	})
}

func TestWhatASystemCallMovesTooMuchCountsLater(t *testing.T) {
	f, busy := contended(1<<20, 1)
	f.Allowance(busy, Receiving, 1<<20)
	f.Count(busy, Receiving, 3*LongTurnBytes)
	for turn := range 3 {
		if got := f.Allowance(busy, Receiving, 1<<20); got != 0 {
			t.Errorf("turn %d: %d bytes are left although three turns were used", turn, got)
		}
		if got := f.Allowance(busy, Transmitting, 1<<20); got != LongTurnBytes {
			t.Errorf("turn %d: %d bytes may be sent", turn, got)
		}
		f.BeginTurn()
	}
	if got := f.Allowance(busy, Receiving, 1<<20); got != LongTurnBytes {
		t.Errorf("%d bytes may be received in the fourth turn", got)
	}
}

func TestSessionIsForgottenWithItsLastConnection(t *testing.T) {
	domain := sessions(1)[0]
	var f Fairness
	var members [2]Member
	for i := range members {
		f.Join(&members[i], domain)
	}
	f.Leave(&members[0])
	if len(f.shares) != 1 {
		t.Error("a session with a connection is forgotten")
	}
	if f.Leave(&members[1]); len(f.shares) != 0 {
		t.Error("a session without connections is remembered")
	}
}
