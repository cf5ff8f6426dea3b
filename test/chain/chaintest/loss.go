// SPDX-License-Identifier: Apache-2.0

package chaintest

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
)

func testALostTargetFailsEverythingInFlightOnceAndServesAgain(t *testing.T) {
	Parallel(t)
	const depth = 16
	c := Start(t, Options{
		Gated: true,
		Target: func(config *target.Config) {
			config.DrainTimeout = retry.Within(50 * time.Millisecond)
		},
		Channel: func(config *relay.ChannelConfig) {
			config.SessionWait = retry.Within(50 * time.Millisecond)
		},
	})
	gate := c.Gate
	gate.Closed.Store(true)
	c.AwaitState(client.DefaultChannelName, relay.LinkReady) // a session does not wait for it
	v, err := client.Open(c.Context(), c.QueueConfig(depth))
	if err != nil {
		t.Fatal(err)
	}
	SubmitReads(t, v.Queue(0), depth)
	c.AwaitInFlight(1, v.Queue(0)) // the others may still be on their way
	address := c.Target.Address()
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.StopTarget() }()
	codes := Collect(t, v.Queue(0), depth)
	gate.Closed.Store(false)
	<-stopped
	for tag := range uint64(depth) {
		if got := codes[tag]; len(got) != 1 || got[0] == status.Success {
			t.Errorf("request %d ended with %v, want one failure", tag, got)
		}
	}
	if err := v.Close(c.Context()); err == nil {
		t.Error("closing a volume whose target is gone succeeded")
	} else if v.Err() == nil {
		t.Error("the volume does not say why it ended")
	}
	_, err = client.Open(c.Context(), c.QueueConfig(depth))
	if !errors.Is(err, status.NotConnected) {
		t.Errorf("open while the target is down: %v", err)
	}
	c.StartTarget(Options{}, address)
	c.AwaitState(client.DefaultChannelName, relay.LinkReady)
	again := c.Open(c.Config())
	if _, err := again.WriteAt([]byte("back"), 0); err != nil {
		t.Errorf("write after the target's return: %v", err)
	}
}

func testALostRelayFailsEverythingInFlightOnce(t *testing.T) {
	Parallel(t)
	const depth = 8
	c := Start(t, Options{Gated: true,
		Relay: func(config *relay.Config) {
			config.DrainTimeout = retry.Within(50 * time.Millisecond)
		}})
	gate := c.Gate
	gate.Closed.Store(true)
	v := c.Open(c.QueueConfig(depth))
	SubmitReads(t, v.Queue(0), depth)
	c.StopRelay()
	ExpectOnce(t, Collect(t, v.Queue(0), depth), depth, status.Shutdown)
	c.AwaitEnd(v.Done())
	if err := v.Err(); !errors.Is(err, status.Shutdown) {
		t.Errorf("the volume ended with %v", err)
	}
	gate.Closed.Store(false)
}

func testAnIOThatTimesOutFailsAndItsBufferIsLeftAlone(t *testing.T) {
	Parallel(t)
	const depth = 4
	c := Start(t, Options{Gated: true})
	writer := c.Open(c.Config())
	if _, err := writer.WriteAt(bytes.Repeat([]byte{0xEE}, depth*BlockSize), 0); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(c.Context()); err != nil {
		t.Fatal(err)
	}
	c.AwaitRelease()
	c.channel.IOTimeout = retry.Within(500 * time.Millisecond)
	if err := c.Relay.Reconfigure(c.Context(),
		relay.Settings{Channels: []relay.ChannelConfig{c.channel}}); err != nil {
		t.Fatal(err)
	}
	gate := c.Gate
	gate.Closed.Store(true)
	v := c.Open(c.QueueConfig(depth))
	SubmitReads(t, v.Queue(0), depth)
	ExpectOnce(t, Collect(t, v.Queue(0), depth), depth, status.TimeOut)
	clear(v.Memory())
	gate.Closed.Store(false) // now the target has the data, and nowhere to send it
	c.AwaitRelease()
	if submitted, completed := gate.Submitted.Load(),
		gate.completed.Load(); completed != submitted {
		t.Errorf("the volume completed %d requests of %d", completed, submitted)
	}
	if !bytes.Equal(v.Memory(), make([]byte, len(v.Memory()))) {
		t.Error("the target has written to a buffer that the client had back")
	}
	c.AwaitEnd(v.Done())
	if err := v.Err(); !errors.Is(err, status.TimeOut) {
		t.Errorf("the volume ended with %v", err)
	}
}

func testAVolumeErrorFailsOnlyThatIO(t *testing.T) {
	Parallel(t)
	c := Start(t, Options{Gated: true})
	gate := c.Gate
	v := c.Open(c.Config())
	gate.failed.Store(uint32(status.IOFailed))
	if _, err := v.ReadAt(make([]byte, BlockSize), 0); !errors.Is(err, status.IOFailed) {
		t.Errorf("read: %v", err)
	}
	if err := v.Flush(); !errors.Is(err, status.IOFailed) {
		t.Errorf("flush: %v", err)
	}
	gate.failed.Store(uint32(status.Success))
	if _, err := v.ReadAt(make([]byte, BlockSize), 0); err != nil {
		t.Errorf("read after the failure: %v", err)
	}
}

func testRequestsInFlightAtTheLossCompleteAfterIt(t *testing.T) {
	Parallel(t)
	o := OnFile(t)
	o.Relay = func(config *relay.Config) {
		config.DrainTimeout = retry.Within(50 * time.Millisecond)
	}
	c := Start(t, o)
	config := c.Config()
	config.Reconnect = Reconnecting()
	v := c.Open(config)
	c.Gate.Closed.Store(true)
	var running sync.WaitGroup
	const writers = 12
	for i := range writers {
		running.Go(func() {
			if _, err := v.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, BlockSize),
				int64(i*BlockSize)); err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		})
	}
	running.Go(func() {
		if _, err := v.ReadAt(make([]byte, BlockSize), writers*BlockSize); err != nil {
			t.Errorf("read: %v", err)
		}
	})
	c.AwaitInFlight(writers + 1)
	c.StopRelay()
	c.Gate.Closed.Store(false)
	c.StartRelay(o)
	running.Wait()
	got := make([]byte, writers*BlockSize)
	if _, err := v.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	for i := range writers {
		if !bytes.Equal(got[i*BlockSize:][:BlockSize],
			bytes.Repeat([]byte{byte(i + 1)}, BlockSize)) {
			t.Errorf("write %d is not there", i)
		}
	}
	if err := v.Flush(); err != nil {
		t.Errorf("flush after a restart of the relay alone: %v", err)
	}
}

func testLostUnflushedWritesFailTheNextFlushOfEachQueue(t *testing.T) {
	Parallel(t)
	o := OnFile(t)
	c := Start(t, o)
	config := c.QueueConfig(8)
	config.Reconnect, config.SyncDepth = Reconnecting(), 4
	v := c.Open(config)
	q := v.Queue(0)
	// This goes to the queue for synchronous requests.
	if _, err := v.WriteAt(make([]byte, BlockSize), 0); err != nil {
		t.Fatal(err)
	}
	c.RestartTarget(o)
	flush := client.Request{Type: client.Flush, Tag: 9}
	// The first read that succeeds is one of the next session.
	readPatiently(t, q)
	if err := q.Submit(&flush); !errors.Is(err, client.ErrWritesLost) ||
		!errors.Is(err, status.IOFailed) {
		t.Errorf("flush on another queue: %v", err)
	}
	if err := v.Flush(); !errors.Is(err, client.ErrWritesLost) {
		t.Errorf("flush on the queue of the write: %v", err)
	}
	if err := v.Flush(); !errors.Is(err, client.ErrWritesLost) {
		t.Errorf("another flush, perhaps of another caller: %v", err)
	}
	if err := q.Submit(&flush); err != nil {
		t.Errorf("the loss is told twice: %v", err)
	}
	q.Ring()
	if got := Collect(t, q, 1)[9]; got[0] != status.Success {
		t.Errorf("flush ended with %v", got)
	}
	if r := v.Reconnections(); r.LostWrites != 1 {
		t.Errorf("history is %+v", r)
	}
}
