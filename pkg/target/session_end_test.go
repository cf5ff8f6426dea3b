package target_test

import (
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestTheNextSessionBeginsWhenAStuckWorkerResumes(t *testing.T) {
	disk := volumetest.OpenMemory(t, "1MiB")
	var stuck sync.Mutex // held while the worker is stuck between two turns
	s, err := target.New(t.Context(), target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: loopback, RDMAListen: loopback,
		Volumes: map[string]target.Export{"disk": {Volume: disk}}, CPUs: []int{datapath.NoCPU},
		Policy: progress.Policy{Mode: progress.Stepped, Step: func(work int) {
			if work == 0 {
				time.Sleep(50 * time.Microsecond)
			}
			stuck.Lock()
			defer stuck.Unlock()
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.SetReleaseTimeout(time.Millisecond)
	serve(t, s)

	former, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m := configuration(2, 4) // whose lanes have no connections
	if _, err := former.Call(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	stuck.Lock()
	resume := sync.OnceFunc(stuck.Unlock)
	t.Cleanup(resume)
	former.Close(nil)
	await(t, "the session has ended", func() bool { return s.Sessions() == 0 })
	resume()
	next, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Epoch++
	if _, err := next.Call(t.Context(), m); err != nil {
		t.Errorf("the next epoch: %v", err)
	}
}
