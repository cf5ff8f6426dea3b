package retry

import (
	"testing"
	"time"
)

func TestAPaceAllowsABurstAndThenOnePerInterval(t *testing.T) {
	const burst = 3
	p := NewPace(time.Second)
	now := time.Unix(0, 0)
	for i, want := range []time.Duration{0, 0, 0, time.Second, 2 * time.Second} {
		if got, ok := p.Reserve(now, burst, time.Minute); !ok || got != want {
			t.Errorf("reservation %d waits %v, want %v", i, got, want)
		}
	}
	if wait, ok := p.Reserve(now, burst, 2*time.Second); ok || wait != 3*time.Second {
		t.Errorf("a reservation beyond the wait: %v, %v", wait, ok)
	}
	p.Cancel()
	if wait, ok := p.Reserve(now, burst, 2*time.Second); !ok || wait != 2*time.Second {
		t.Errorf("after another was cancelled: %v, %v", wait, ok)
	}
	if wait, ok := p.Reserve(now.Add(3*time.Second), burst, 0); !ok || wait != 0 {
		t.Errorf("once the interval has passed: %v, %v", wait, ok)
	}
	for i := range burst {
		if wait, ok := p.Reserve(now.Add(time.Hour), burst, 0); !ok || wait != 0 {
			t.Errorf("reservation %d of a burst after a rest: %v, %v", i, wait, ok)
		}
	}
}
