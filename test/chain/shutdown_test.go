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
)

func TestATargetThatShutsDownCompletesWhatItCarriesOut(t *testing.T) {
	parallel(t)
	const depth, slow = 64, 3
	c := start(t, options{
		gated: true,
		target: func(config *target.Config) {
			config.DrainTimeout = retry.Within(testkit.Patience)
		},
	})
	c.gate.closed.Store(true)
	t.Cleanup(func() { c.gate.closed.Store(false) })
	v := c.open(c.queueConfig(depth))
	queue := v.Queue(0)
	for tag := range uint64(slow) {
		submitRead(t, queue, tag)
	}
	c.awaitInFlight(slow)
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stopTarget() }()
	// The target takes a moment to begin its drain. Until then it accepts requests.
	declined := func() uint64 {
		var n uint64
		for _, q := range c.target.Counters()[volumeName].Queues() {
			n += q.IO(iomsg.OpRead, status.Shutdown)
		}
		return n
	}
	submitted := uint64(slow)
	c.await("the target declines a request", func() bool {
		accepted := uint64(c.gate.submitted.Load())
		if declined() == 0 && accepted == submitted && submitted < depth {
			submitRead(t, queue, submitted)
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
	accepted := uint64(c.gate.submitted.Load())
	c.gate.closed.Store(false)
	codes := collect(t, queue, int(submitted))
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
	parallel(t)
	const depth, size = 8, volumeSize / 8
	c := start(t, options{
		gated: true,
		target: func(config *target.Config) {
			config.DrainTimeout = retry.Within(testkit.Patience)
		},
	})
	c.gate.closed.Store(true)
	config := c.queueConfig(depth)
	config.BufferSize = size
	v := c.open(config)
	for tag := range uint64(depth) {
		err := v.Queue(0).Submit(&client.Request{
			Type: iomsg.Read, Length: size, Offset: tag * size, Memory: tag * size, Tag: tag,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	v.Queue(0).Flush()
	c.awaitInFlight(depth)
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stopTarget() }()
	c.gate.closed.Store(false)
	expectOnce(t, collect(t, v.Queue(0), depth), depth, status.Success)
	<-stopped
}

func submitRead(t *testing.T, queue *client.Queue, tag uint64) {
	t.Helper()
	err := queue.Submit(&client.Request{
		Type: iomsg.Read, Length: blockSize, Memory: tag * blockSize, Tag: tag,
	})
	if err != nil {
		t.Fatal(err)
	}
	queue.Flush()
}
