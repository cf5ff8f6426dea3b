// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

func TestATargetThatShutsDownCompletesWhatItCarriesOut(t *testing.T) {
	chaintest.Parallel(t)
	const depth, slow = 64, 3
	c := chaintest.Start(t, options{
		Gated: true,
		Target: func(config *target.Config) {
			config.DrainTimeout = retry.Within(testkit.Patience)
		},
	})
	c.Gate.Closed.Store(true)
	t.Cleanup(func() { c.Gate.Closed.Store(false) })
	v := c.Open(c.QueueConfig(depth))
	queue := v.Queue(0)
	for tag := range uint64(slow) {
		chaintest.SubmitRead(t, queue, tag)
	}
	c.AwaitInFlight(slow)
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.StopTarget() }()
	// The target takes a moment to begin its drain. Until then it accepts requests.
	declined := func() uint64 {
		var n uint64
		for _, q := range c.Target.Volumes()[0].Counters.Queues() {
			n += q.IO(iomsg.OpRead, status.Shutdown)
		}
		return n
	}
	submitted := uint64(slow)
	c.Await("the target declines a request", func() bool {
		accepted := uint64(c.Gate.Submitted.Load())
		if declined() == 0 && accepted == submitted && submitted < depth {
			chaintest.SubmitRead(t, queue, submitted)
			submitted++
		}
		return declined() > 0
	})
	var results [depth]client.Result
	for range 20 {
		if n := queue.Poll(results[:]); n > 0 {
			t.Fatalf("before the end of the session: %+v", results[:n])
		}
		time.Sleep(time.Millisecond)
	}
	accepted := uint64(c.Gate.Submitted.Load())
	c.Gate.Closed.Store(false)
	codes := chaintest.Collect(t, queue, int(submitted))
	<-stopped
	for tag := range submitted {
		want := status.Success
		if tag >= accepted {
			want = status.Shutdown
		}
		if got := codes[tag]; len(got) != 1 || got[0] != want {
			t.Errorf("request %d ended with %v, want %v", tag, got, want)
		}
	}
}

func TestTheLastResponsesOfATargetAreDelivered(t *testing.T) {
	chaintest.Parallel(t)
	const depth, size = 8, volumeSize / 8
	c := chaintest.Start(t, options{
		Gated: true,
		Target: func(config *target.Config) {
			config.DrainTimeout = retry.Within(testkit.Patience)
		},
	})
	c.Gate.Closed.Store(true)
	config := c.QueueConfig(depth)
	config.BufferSize = size
	v := c.Open(config)
	for tag := range uint64(depth) {
		err := v.Queue(0).Submit(&client.Request{
			Type: client.Read, Length: size, Offset: tag * size, Memory: tag * size, Tag: tag,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	v.Queue(0).Ring()
	c.AwaitInFlight(depth)
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.StopTarget() }()
	c.Gate.Closed.Store(false)
	chaintest.ExpectOnce(t, chaintest.Collect(t, v.Queue(0), depth), depth, status.Success)
	<-stopped
}
