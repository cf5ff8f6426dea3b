package connections

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
)

func TestQueueYieldsOnlyUnderContention(t *testing.T) {
	table := registration.NewTable()
	first := registration.NewDomain("test", table, func() {})
	second := registration.NewDomain("test", table, func() {})
	var ofFirst, ofSecond Fairness
	yields := func(f *Fairness, d *registration.Domain, rounds, bytes int) (count int) {
		for range rounds {
			f.Count(bytes, d.Activate())
			if f.YieldDue() {
				count++
			}
		}
		return count
	}
	if n := yields(&ofFirst, first, 1000, YieldBytes); n != 0 {
		t.Errorf("the only session yielded %d times", n)
	}
	yields(&ofSecond, second, 1, 1)
	if n := yields(&ofFirst, first, 1000, YieldBytes); n != ContendedYields {
		t.Errorf("the queue yielded %d times after another session was last active, want %d",
			n, ContendedYields)
	}
	for range ContendedYields {
		yields(&ofSecond, second, 1, 1)
		if n := yields(&ofFirst, first, 40, YieldBytes/4); n != 10 {
			t.Fatalf("next to another session, the queue yielded %d times for %d bytes",
				n, 10*YieldBytes)
		}
	}
}
