// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// sleeper is a completion queue that only arms and disarms.
type sleeper struct {
	rdma.CompletionQueue
	hasWork, armed bool
}

func (s *sleeper) Arm() bool {
	s.armed = !s.hasWork
	return s.armed
}

func (s *sleeper) Disarm() { s.armed = false }

func TestAQueueArmsBothTransportsOrNone(t *testing.T) {
	for name, test := range map[string]struct{ tcp, local, want bool }{
		"no work": {false, false, true}, "tcp has work": {true, false, false},
		"local has work": {false, true, false}, "both have work": {true, true, false},
	} {
		tcp, local := &sleeper{hasWork: test.tcp}, &sleeper{hasWork: test.local}
		q := &queue{tcp: tcp, local: local}
		if got := q.Arm(); got != test.want || tcp.armed != got || local.armed != got {
			t.Errorf("%s: Arm returns %v, TCP is armed: %v, shared memory: %v", name, got,
				tcp.armed, local.armed)
		}
		if q.Disarm(); tcp.armed || local.armed {
			t.Errorf("%s: still armed after Disarm", name)
		}
	}
}
