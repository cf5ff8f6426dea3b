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

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// reconnecting returns a policy that tries for as long as a test may take.
func reconnecting() *retry.Policy {
	return &retry.Policy{Total: retry.Within(testkit.Patience), FirstPause: 5 * time.Millisecond,
		LongestPause: 50 * time.Millisecond}
}

// onFile returns the options of a chain whose volume is a file, which survives its target.
func onFile(t *testing.T) options {
	return options{spec: volumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB", gated: true}
}

// restartTarget stops the target and starts another in its place.
func (c *chain) restartTarget(o options) {
	c.t.Helper()
	address := c.target.Address()
	c.stopTarget()
	c.startTarget(o, address)
}

func TestAFileVolumeSurvivesItsTarget(t *testing.T) {
	parallel(t)
	o := onFile(t)
	c := start(t, o)
	config := c.config()
	config.Reconnect = reconnecting()
	v := c.open(config)
	verifier := v.Info().WriteVerifier
	for round := range byte(5) {
		want := bytes.Repeat([]byte{round + 1}, 3*blockSize)
		if _, err := v.WriteAt(want, 777); err != nil {
			t.Fatalf("write %d: %v", round, err)
		}
		if err := v.Flush(); err != nil {
			t.Fatalf("flush %d: %v", round, err)
		}
		c.restartTarget(o)
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
	if err := v.Close(c.context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestAClientReopensAlthoughTheTargetDoesNotClose(t *testing.T) {
	parallel(t)
	end := make(chan struct{})
	c := start(t, options{relay: func(config *relay.Config) {
		config.HookTransport = func(t controlmsg.Transport) controlmsg.Transport {
			if _, err := netip.ParseAddrPort(t.RemoteName()); err != nil {
				return t // the client's
			}
			return controlmsgtest.Lingering{Transport: t, Until: end}
		}
	}})
	t.Cleanup(func() { close(end) })
	config := c.config()
	config.Reconnect = reconnecting()
	v := c.open(config)
	if err := v.Reopen(errors.New("the test ends the session")); err != nil {
		t.Fatal(err)
	}
	c.await("the volume is reopened", func() bool { return v.Reconnections().Count == 1 })
}

func TestRequestsInFlightAtTheLossCompleteAfterIt(t *testing.T) {
	parallel(t)
	o := onFile(t)
	o.relay = func(config *relay.Config) {
		config.DrainTimeout = retry.Within(50 * time.Millisecond)
	}
	c := start(t, o)
	config := c.config()
	config.Reconnect = reconnecting()
	v := c.open(config)
	c.gate.closed.Store(true)
	var running sync.WaitGroup
	const writers = 12
	for i := range writers {
		running.Go(func() {
			if _, err := v.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, blockSize),
				int64(i*blockSize)); err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		})
	}
	running.Go(func() {
		if _, err := v.ReadAt(make([]byte, blockSize), writers*blockSize); err != nil {
			t.Errorf("read: %v", err)
		}
	})
	c.awaitInFlight(writers + 1)
	c.stopRelay()
	c.gate.closed.Store(false)
	c.startRelay(o)
	running.Wait()
	got := make([]byte, writers*blockSize)
	if _, err := v.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	for i := range writers {
		if !bytes.Equal(got[i*blockSize:][:blockSize],
			bytes.Repeat([]byte{byte(i + 1)}, blockSize)) {
			t.Errorf("write %d is not there", i)
		}
	}
	if err := v.Flush(); err != nil {
		t.Errorf("flush after a restart of the relay alone: %v", err)
	}
}

func TestLostUnflushedWritesFailTheNextFlushOfEachQueue(t *testing.T) {
	parallel(t)
	o := onFile(t)
	c := start(t, o)
	config := c.queueConfig(8)
	config.Reconnect, config.SyncDepth = reconnecting(), 4
	v := c.open(config)
	q := v.Queue(0)
	// This goes to the queue for synchronous requests.
	if _, err := v.WriteAt(make([]byte, blockSize), 0); err != nil {
		t.Fatal(err)
	}
	c.restartTarget(o)
	flush := client.Request{Type: iomsg.Flush, Tag: 9}
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
	q.Flush()
	if got := collect(t, q, 1)[9]; got[0] != status.Success {
		t.Errorf("flush ended with %v", got)
	}
	if r := v.Reconnections(); r.LostWrites != 1 {
		t.Errorf("history is %+v", r)
	}
}

// readPatiently reads the first block until it succeeds. The session that is about to end may still
// accept the read, and then fails it.
func readPatiently(t *testing.T, q *client.Queue) {
	t.Helper()
	results := make([]client.Result, 1)
	outstanding := false
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); {
		if !outstanding {
			err := q.Submit(&client.Request{Type: iomsg.Read, Length: blockSize})
			if err != nil && !errors.Is(err, status.Again) {
				t.Fatalf("submit: %v", err)
			}
			outstanding = err == nil
			q.Flush()
		}
		if q.Poll(results) == 1 {
			switch results[0].Code {
			case status.Success:
				return
			case status.ConnectionReset, status.Shutdown, status.TimeOut:
				outstanding = false
			default:
				t.Fatalf("read ended with %v", results[0].Code)
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("no read succeeded")
}

func TestAVolumeOutlastsAnotherProgramAtTheTargetsAddress(t *testing.T) {
	parallel(t)
	o := onFile(t)
	o.channel = func(config *relay.ChannelConfig) { config.SessionWait = retry.Within(0) }
	c := start(t, o)
	config := c.config()
	config.Reconnect = reconnecting()
	c.awaitState(client.DefaultChannelName, relay.LinkReady)
	v := c.open(config)
	address := c.target.Address()
	c.stopTarget()
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
	c.await("the relay knows the other program",
		func() bool { return errors.Is(c.relay.Channels()[0].Link.LastError, status.TooBig) })
	tried := c.relay.SessionsTotal()
	c.await("the client has tried several times",
		func() bool { return v.Err() != nil || c.relay.SessionsTotal() >= tried+3 })
	if err := v.Err(); err != nil {
		t.Errorf("the volume has failed: %v", err)
	}
	_ = listener.Close()
	answering.Wait()
	c.startTarget(o, address)
	if _, err := v.ReadAt(make([]byte, blockSize), 0); err != nil {
		t.Errorf("read after the target is back: %v", err)
	}
}

// Several users write, the target loses what they have written, and all flush at the same time.
// None of them may take the success of its flush for an answer because another flush has failed.
func TestEachUserLearnsThatWritesAreLost(t *testing.T) {
	parallel(t)
	const users = 8
	o := onFile(t)
	c := start(t, o)
	config := c.config()
	config.Reconnect = reconnecting()
	v := c.open(config)
	var flushers []*client.Flusher
	var running sync.WaitGroup
	for i := range users {
		flushers = append(flushers, v.NewFlusher())
		if _, err := v.WriteAt([]byte("lost?"), int64(i*blockSize)); err != nil {
			t.Fatal(err)
		}
	}
	c.restartTarget(o)
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
	if err := v.Close(c.context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestCloseReportsLostWritesThatNoFlushHasReported(t *testing.T) {
	parallel(t)
	o := onFile(t)
	c := start(t, o)
	config := c.config()
	config.Reconnect = reconnecting()
	v := c.open(config)
	if _, err := v.WriteAt([]byte("lost?"), 0); err != nil {
		t.Fatal(err)
	}
	c.restartTarget(o)
	if _, err := v.ReadAt(make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(c.context()); !errors.Is(err, client.ErrWritesLost) {
		t.Errorf("close: %v", err)
	}
}

func TestAQueueFailsEverythingOnceAndContinuesInTheNextSession(t *testing.T) {
	parallel(t)
	const depth = 16
	o := onFile(t)
	o.relay = func(config *relay.Config) {
		config.DrainTimeout = retry.Within(50 * time.Millisecond)
	}
	c := start(t, o)
	config := c.queueConfig(depth)
	config.Reconnect = reconnecting()
	v := c.open(config)
	q := v.Queue(0)
	engine := newEngine(t, q)
	for range 3 {
		c.gate.closed.Store(true)
		submitReads(t, q, depth)
		c.awaitInFlight(depth)
		c.stopRelay()
		codes := collect(t, q, depth)
		for tag := range uint64(depth) {
			if got := codes[tag]; len(got) != 1 || got[0] == status.Success {
				t.Errorf("request %d ended with %v, want one failure", tag, got)
			}
		}
		err := q.Submit(&client.Request{Type: iomsg.Read, Length: blockSize})
		if !errors.Is(err, client.ErrReopening) || !errors.Is(err, status.Again) {
			t.Errorf("submit while there is no relay: %v", err)
		}
		if v.Err() != nil {
			t.Errorf("a volume that is being reopened has ended: %v", v.Err())
		}
		c.gate.closed.Store(false)
		c.startRelay(o)
		// The engine wakes up when the queue accepts requests again.
		for woken := false; !woken; {
			q.Poll(make([]client.Result, 1))
			if err := q.Submit(&client.Request{Type: iomsg.Read, Length: blockSize}); err == nil {
				woken = true
			} else if !errors.Is(err, client.ErrReopening) {
				t.Fatal(err)
			} else {
				engine.Idle(engine.Progress())
			}
		}
		q.Flush()
		expectOnce(t, collect(t, q, 1), 1, status.Success)
	}
	if r := v.Reconnections(); r.Count != 3 {
		t.Errorf("history is %+v", r)
	}
}

func TestAnotherVolumeIsNotMistakenForTheLostOne(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	config := c.config()
	config.Reconnect = reconnecting()
	v := c.open(config)
	if _, err := v.WriteAt([]byte("in memory only"), 0); err != nil {
		t.Fatal(err)
	}
	c.restartTarget(options{})
	_, err := v.ReadAt(make([]byte, 10), 0)
	if !errors.Is(err, client.ErrAnotherVolume) || !strings.Contains(err.Error(), "UUID") {
		t.Errorf("read from a volume that is not there any more: %v", err)
	}
	c.awaitEnd(v.Done())
	if err := v.Err(); !errors.Is(err, client.ErrAnotherVolume) {
		t.Errorf("the volume ended with %v", err)
	}
	if err := v.Close(c.context()); !errors.Is(err, client.ErrAnotherVolume) {
		t.Errorf("close: %v", err)
	}
}

func TestAReconnectPolicyIsObeyedAndItsEndReportedToAllCallers(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	config := c.queueConfig(4)
	config.SyncDepth = 2
	config.Reconnect = &retry.Policy{Attempts: retry.Times(3), FirstPause: time.Millisecond}
	v := c.open(config)
	c.stopRelay()
	if _, err := v.ReadAt(make([]byte, 10), 0); err == nil ||
		!strings.Contains(err.Error(), "3 attempts") {
		t.Errorf("read: %v", err)
	}
	c.awaitEnd(v.Done())
	q := v.Queue(0)
	q.Poll(make([]client.Result, 1))
	if err := q.Submit(&client.Request{Type: iomsg.Read, Length: blockSize}); err == nil ||
		errors.Is(err, status.Again) {
		t.Errorf("submit: %v", err)
	}
}

func TestAVolumeCanBeClosedWhileItIsBeingReopened(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	config := c.config()
	config.Queues = 1
	config.Reconnect = &retry.Policy{Total: retry.Forever()}
	v := c.open(config)
	c.stopRelay()
	reading := make(chan error)
	go func() {
		_, err := v.ReadAt(make([]byte, 10), 0)
		reading <- err
	}()
	c.await("the volume is being reopened", func() bool {
		v.Queue(0).Poll(make([]client.Result, 1))
		return errors.Is(v.Queue(0).Submit(&client.Request{Type: iomsg.Read, Length: blockSize}),
			client.ErrReopening)
	})
	if err := v.Close(c.context()); err == nil {
		t.Error("closing a volume without a session succeeded")
	}
	if err := <-reading; err == nil {
		t.Error("a read without a session succeeded")
	}
}

func TestAClientsNextSessionStartsAfterTheFormerIsReleased(t *testing.T) {
	parallel(t)
	c := start(t, options{gated: true})
	instance := client.NewInstance()
	config := c.queueConfig(4)
	config.Instance = instance
	first := c.open(config)
	c.gate.closed.Store(true)
	submitReads(t, first.Queue(0), 4)
	c.awaitInFlight(4)
	opened := make(chan *client.Volume, 1)
	go func() {
		second, err := client.Open(c.context(), config)
		if err != nil {
			t.Error(err)
		}
		opened <- second
	}()
	codes := collect(t, first.Queue(0), 4)
	expectOnce(t, codes, 4, status.ConnectionReset)
	select {
	case <-opened:
		t.Fatal("the second session was served while the first had IO under way")
	case <-time.After(50 * time.Millisecond):
	}
	c.gate.closed.Store(false)
	second := <-opened
	if second == nil {
		t.FailNow()
	}
	if err := second.Close(c.context()); err != nil {
		t.Error(err)
	}
}
