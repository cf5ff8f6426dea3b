// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

func TestAFileVolumeSurvivesItsTarget(t *testing.T) {
	chaintest.Parallel(t)
	o := chaintest.OnFile(t)
	c := chaintest.Start(t, o)
	config := c.Config()
	config.Reconnect = chaintest.Reconnecting()
	v := c.Open(config)
	verifier := v.Info().WriteVerifier
	for round := range byte(5) {
		want := bytes.Repeat([]byte{round + 1}, 3*blockSize)
		if _, err := v.WriteAt(want, 777); err != nil {
			t.Fatalf("write %d: %v", round, err)
		}
		if err := v.Flush(); err != nil {
			t.Fatalf("flush %d: %v", round, err)
		}
		c.RestartTarget(o)
		got := make([]byte, len(want))
		if _, err := v.ReadAt(got, 777); err != nil {
			t.Fatalf("read %d: %v", round, err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("round %d: flushed data is lost", round)
		}
	}
	if v.Info().WriteVerifier == verifier {
		t.Error("the volume does not show the verifier of the new target")
	}
	if r := v.Reconnections(); r.Count != 5 || r.LostWrites != 0 || r.Outage < r.LongestOutage ||
		r.LongestOutage <= 0 {
		t.Errorf("history is %+v", r)
	}
	if err := v.Close(c.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestAClientReopensAlthoughTheTargetDoesNotClose(t *testing.T) {
	chaintest.Parallel(t)
	end := make(chan struct{})
	c := chaintest.Start(t, options{Relay: func(config *relay.Config) {
		config.HookTransport = func(t controlmsg.Transport) controlmsg.Transport {
			if _, err := netip.ParseAddrPort(t.RemoteName()); err != nil {
				return t // the client's
			}
			return controlmsgtest.Lingering{Transport: t, Until: end}
		}
	}})
	t.Cleanup(func() { close(end) })
	config := c.Config()
	config.Reconnect = chaintest.Reconnecting()
	v := c.Open(config)
	if err := v.Reopen(errors.New("the test ends the session")); err != nil {
		t.Fatal(err)
	}
	c.Await("the volume is reopened", func() bool { return v.Reconnections().Count == 1 })
}

func TestAVolumeOutlastsAnotherProgramAtTheTargetsAddress(t *testing.T) {
	chaintest.Parallel(t)
	o := chaintest.OnFile(t)
	o.Channel = func(config *relay.ChannelConfig) { config.SessionWait = retry.Within(0) }
	c := chaintest.Start(t, o)
	config := c.Config()
	config.Reconnect = chaintest.Reconnecting()
	c.AwaitState(client.DefaultChannelName, relay.LinkReady)
	v := c.Open(config)
	address := c.Target.Address()
	c.StopTarget()
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = connection.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = connection.Close()
		}
	})
	c.Await("the relay knows the other program",
		func() bool { return errors.Is(c.Relay.Channels()[0].Link.LastError, status.BadConfig) })
	tried := c.Relay.SessionsTotal()
	c.Await("the client has tried several times",
		func() bool { return v.Err() != nil || c.Relay.SessionsTotal() >= tried+3 })
	if err := v.Err(); err != nil {
		t.Errorf("the volume has failed: %v", err)
	}
	_ = listener.Close()
	answering.Wait()
	c.StartTarget(o, address)
	if _, err := v.ReadAt(make([]byte, blockSize), 0); err != nil {
		t.Errorf("read after the target is back: %v", err)
	}
}

// Several users write, the target loses what they have written, and all flush at the same time.
// None of them may take the success of its flush for an answer because another flush has failed.
func TestEachUserLearnsThatWritesAreLost(t *testing.T) {
	chaintest.Parallel(t)
	const users = 8
	o := chaintest.OnFile(t)
	c := chaintest.Start(t, o)
	config := c.Config()
	config.Reconnect = chaintest.Reconnecting()
	v := c.Open(config)
	var flushers []*client.Flusher
	var running sync.WaitGroup
	for i := range users {
		flushers = append(flushers, v.NewFlusher())
		if _, err := v.WriteAt([]byte("lost?"), int64(i*blockSize)); err != nil {
			t.Fatal(err)
		}
	}
	c.RestartTarget(o)
	for _, f := range flushers {
		running.Go(func() {
			if err := f.Flush(); !errors.Is(err, client.ErrWritesLost) {
				t.Errorf("first flush of a user: %v", err)
			}
			if err := f.Flush(); err != nil {
				t.Errorf("second flush of a user: %v", err)
			}
		})
		running.Go(func() {
			if err := v.Flush(); !errors.Is(err, client.ErrWritesLost) {
				t.Errorf("flush of nobody in particular: %v", err)
			}
		})
	}
	running.Wait()
	if err := v.NewFlusher().Flush(); err != nil {
		t.Errorf("flush of a user who has begun after the loss: %v", err)
	}
	if err := v.Close(c.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestCloseReportsLostWritesThatNoFlushHasReported(t *testing.T) {
	chaintest.Parallel(t)
	o := chaintest.OnFile(t)
	c := chaintest.Start(t, o)
	config := c.Config()
	config.Reconnect = chaintest.Reconnecting()
	v := c.Open(config)
	if _, err := v.WriteAt([]byte("lost?"), 0); err != nil {
		t.Fatal(err)
	}
	c.RestartTarget(o)
	if _, err := v.ReadAt(make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(c.Context()); !errors.Is(err, client.ErrWritesLost) {
		t.Errorf("close: %v", err)
	}
}

func TestAQueueFailsEverythingOnceAndContinuesInTheNextSession(t *testing.T) {
	chaintest.Parallel(t)
	const depth = 16
	o := chaintest.OnFile(t)
	o.Relay = func(config *relay.Config) {
		config.DrainTimeout = retry.Within(50 * time.Millisecond)
	}
	c := chaintest.Start(t, o)
	config := c.QueueConfig(depth)
	config.Reconnect = chaintest.Reconnecting()
	v := c.Open(config)
	q := v.Queue(0)
	engine := chaintest.NewEngine(t, q)
	for range 3 {
		c.Gate.Closed.Store(true)
		chaintest.SubmitReads(t, q, depth)
		c.AwaitInFlight(depth)
		c.StopRelay()
		codes := chaintest.Collect(t, q, depth)
		for tag := range uint64(depth) {
			if got := codes[tag]; len(got) != 1 || got[0] == status.Success {
				t.Errorf("request %d ended with %v, want one failure", tag, got)
			}
		}
		err := q.Submit(&client.Request{Type: client.Read, Length: blockSize})
		if !errors.Is(err, client.ErrReopening) || !errors.Is(err, status.Again) {
			t.Errorf("submit while there is no relay: %v", err)
		}
		if v.Err() != nil {
			t.Errorf("a volume that is being reopened has ended: %v", v.Err())
		}
		c.Gate.Closed.Store(false)
		c.StartRelay(o)
		// The engine wakes up when the queue accepts requests again.
		for woken := false; !woken; {
			q.Poll(make([]client.Result, 1))
			if err := q.Submit(&client.Request{Type: client.Read, Length: blockSize}); err == nil {
				woken = true
			} else if !errors.Is(err, client.ErrReopening) {
				t.Fatal(err)
			} else {
				engine.Idle(engine.Progress())
			}
		}
		q.Ring()
		chaintest.ExpectOnce(t, chaintest.Collect(t, q, 1), 1, status.Success)
	}
	if r := v.Reconnections(); r.Count != 3 {
		t.Errorf("history is %+v", r)
	}
}

func TestAnotherVolumeIsNotMistakenForTheLostOne(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	config := c.Config()
	config.Reconnect = chaintest.Reconnecting()
	v := c.Open(config)
	if _, err := v.WriteAt([]byte("in memory only"), 0); err != nil {
		t.Fatal(err)
	}
	c.RestartTarget(options{})
	_, err := v.ReadAt(make([]byte, 10), 0)
	if !errors.Is(err, client.ErrAnotherVolume) || !strings.Contains(err.Error(), "UUID") {
		t.Errorf("read from a volume that is not there any more: %v", err)
	}
	c.AwaitEnd(v.Done())
	if err := v.Err(); !errors.Is(err, client.ErrAnotherVolume) {
		t.Errorf("the volume ended with %v", err)
	}
	if err := v.Close(c.Context()); !errors.Is(err, client.ErrAnotherVolume) {
		t.Errorf("close: %v", err)
	}
}

func TestAReconnectPolicyIsObeyedAndItsEndReportedToAllCallers(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	config := c.QueueConfig(4)
	config.SyncDepth = 2
	config.Reconnect = &retry.Policy{Attempts: retry.Times(3), FirstPause: time.Millisecond}
	v := c.Open(config)
	c.StopRelay()
	if _, err := v.ReadAt(make([]byte, 10), 0); err == nil ||
		!strings.Contains(err.Error(), "3 attempts") {
		t.Errorf("read: %v", err)
	}
	c.AwaitEnd(v.Done())
	q := v.Queue(0)
	q.Poll(make([]client.Result, 1))
	if err := q.Submit(&client.Request{Type: client.Read, Length: blockSize}); err == nil ||
		errors.Is(err, status.Again) {
		t.Errorf("submit: %v", err)
	}
}

func TestAVolumeCanBeClosedWhileItIsBeingReopened(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	config := c.Config()
	config.Queues = 1
	config.Reconnect = &retry.Policy{Total: retry.Forever()}
	v := c.Open(config)
	c.StopRelay()
	reading := make(chan error)
	go func() {
		_, err := v.ReadAt(make([]byte, 10), 0)
		reading <- err
	}()
	c.Await("the volume is being reopened", func() bool {
		v.Queue(0).Poll(make([]client.Result, 1))
		return errors.Is(v.Queue(0).Submit(&client.Request{Type: client.Read, Length: blockSize}),
			client.ErrReopening)
	})
	if err := v.Close(c.Context()); err == nil {
		t.Error("closing a volume without a session succeeded")
	}
	if err := <-reading; err == nil {
		t.Error("a read without a session succeeded")
	}
}

func TestAClientsNextSessionStartsAfterTheFormerIsReleased(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{Gated: true})
	instance := client.NewInstance()
	config := c.QueueConfig(4)
	config.Instance = instance
	first := c.Open(config)
	c.Gate.Closed.Store(true)
	chaintest.SubmitReads(t, first.Queue(0), 4)
	c.AwaitInFlight(4)
	if _, err := client.Open(c.Context(), config); !errors.Is(err, status.InUse) {
		t.Errorf("an instance is used for two volumes: %v", err)
	}
	first.Abort()
	opened := make(chan *client.Volume, 1)
	go func() {
		second, err := client.Open(c.Context(), config)
		if err != nil {
			t.Error(err)
		}
		opened <- second
	}()
	select {
	case <-opened:
		t.Fatal("the second session was served while the first had IO under way")
	case <-time.After(50 * time.Millisecond):
	}
	c.Gate.Closed.Store(false)
	second := <-opened
	if second == nil {
		t.FailNow()
	}
	if err := second.Close(c.Context()); err != nil {
		t.Error(err)
	}
}
