// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// gate holds one worker up between two turns while it is closed.
type gate struct {
	mu      sync.Mutex
	waiting atomic.Bool
}

func (g *gate) policy() progress.Policy {
	return progress.Policy{Mode: progress.Stepped, Step: func(work int) {
		if work == 0 {
			time.Sleep(50 * time.Microsecond)
		}
		g.waiting.Store(true)
		g.mu.Lock()
		g.waiting.Store(false)
		g.mu.Unlock()
	}}
}

// close returns when the worker has ended its turn.
func (g *gate) close(t *testing.T) (open func()) {
	t.Helper()
	g.mu.Lock()
	testkit.Eventually(t, "the worker is held up", g.waiting.Load)
	return sync.OnceFunc(g.mu.Unlock)
}

// startIO sets up a session and sends a read, which a held target does not answer. It returns when
// the read is in flight.
func (c *chain) startIO(holdTarget func()) {
	c.t.Helper()
	c.sendIO(holdTarget)
	testkit.Eventually(c.t, "the read is in flight", func() bool {
		s := c.relay.Channels()[0].OpenSessions
		return len(s) == 1 && len(s[0].Queues) == 1 && s[0].Queues[0].InFlight == 1
	})
}

// sendIO is startIO, but does not wait. It returns a function that sends another request.
func (c *chain) sendIO(holdTarget func()) (send func(m iomsg.Message)) {
	c.t.Helper()
	send = c.openQueue()
	holdTarget()
	send(iomsg.Message{Type: iomsg.Read, UserData: 5, IOSize: 4096})
	return send
}

// openQueue sets up a session, and returns a function that sends a request.
func (c *chain) openQueue() (send func(m iomsg.Message)) {
	c.t.Helper()
	var relayConsumer comch.ConsumerID
	for _, request := range c.session()[:4] {
		reply, err := c.requester.Call(c.t.Context(), request)
		if err != nil {
			c.t.Fatal(err)
		}
		if m, ok := reply.(*controlmsg.StartDataPathConnectionsReply); ok {
			relayConsumer = comch.ConsumerID(m.ConsumerIDs[0])
		}
	}
	for i := range uint64(8) {
		if err := c.consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			c.t.Fatal(err)
		}
	}
	c.consumer.Flush()
	producer, err := c.connection.NewProducer(c.t.Context(), relayConsumer)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = producer.Close() })
	return func(m iomsg.Message) {
		var request [iomsg.Size]byte
		iomsg.Encode(request[:], &m)
		if err := producer.Send(request[:], nil); err != nil {
			c.t.Fatal(err)
		}
		producer.Flush()
	}
}

// completions polls the results that the client has received so far.
func (c *chain) completions() int {
	var received [8]comch.Received
	return c.consumer.Poll(received[:])
}

func (c *chain) loseTarget() {
	c.proxy.watch(nil, func(*controlmsg.Envelope) *controlmsg.Envelope { return nil })
}

// expectUnreleased waits until the session has ended without a release, for a reason, and checks
// what the client and observers see.
func (c *chain) expectUnreleased(reason string) {
	c.t.Helper()
	testkit.Eventually(c.t, "the client loses its connection", func() bool {
		select {
		case <-c.connection.Done():
			return true
		default:
			return false
		}
	})
	if n := c.completions(); n != 0 {
		c.t.Errorf("%d requests completed while the target had access", n)
	}
	channel := c.relay.Channels()[0]
	if s := channel.OpenSessions; len(s) != 1 || !s[0].Unreleased ||
		!strings.Contains(s[0].UnreleasedReason, reason) {
		c.t.Errorf("the status shows %+v, want an unreleased session (%s)", s, reason)
	}
	if channel.ExportedBytes == 0 {
		c.t.Error("the client's memory was released")
	}
}

func (c *chain) expectRelease() {
	c.t.Helper()
	testkit.Eventually(c.t, "the session is released", func() bool {
		return c.relay.Sessions() == 0 && c.relay.Channels()[0].ExportedBytes == 0
	})
}

func TestNoRequestCompletesWhileAStuckWorkerCannotRevoke(t *testing.T) {
	t.Cleanup(relay.SetEndTimes(50*time.Millisecond, time.Millisecond))
	var relayGate, targetGate gate
	c := startChainWith(t, chainOptions{
		relayPolicy: relayGate.policy(), targetPolicy: targetGate.policy(),
	})
	c.startIO(func() { t.Cleanup(targetGate.close(t)) })
	open := relayGate.close(t)
	t.Cleanup(open)
	c.loseTarget()
	c.expectUnreleased("revoke the target's access")
	open()
	c.expectRelease()
}

func TestAnIOThatTheTargetDoesNotAnswerTimesOut(t *testing.T) {
	var targetGate gate
	c := startChainWith(t, chainOptions{targetPolicy: targetGate.policy(),
		ioTimeout: retry.Within(10 * time.Millisecond)})
	c.sendIO(func() { t.Cleanup(targetGate.close(t)) })
	var received [1]comch.Received
	testkit.Eventually(t, "the read completes", func() bool { return c.consumer.Poll(received[:]) == 1 })
	var m iomsg.Message
	iomsg.Decode(c.consumer.Memory()[received[0].Offset:], &m)
	if m.UserData != 5 || m.Result != status.TimeOut {
		t.Errorf("the read completes with %+v", m)
	}
}

// A client that is told of a failed change can rely on it: the change takes no effect later. Reads
// change nothing, and fail at once.
func TestChangesFailOnlyWhenTheTargetHasEndedTheSession(t *testing.T) {
	var targetGate gate
	c := startChainWith(t, chainOptions{targetPolicy: targetGate.policy(),
		ioTimeout: retry.Within(200 * time.Millisecond)})
	var open func()
	send := c.sendIO(func() { open = targetGate.close(t) })
	t.Cleanup(open)
	send(iomsg.Message{Type: iomsg.Write, UserData: 6, IOSize: 4096})
	next := func() (m iomsg.Message) {
		var received [1]comch.Received
		testkit.Eventually(t, "a request completes",
			func() bool { return c.consumer.Poll(received[:]) == 1 })
		iomsg.Decode(c.consumer.Memory()[received[0].Offset:], &m)
		return m
	}
	if m := next(); m.UserData != 5 || m.Result != status.TimeOut {
		t.Errorf("the first to complete is %+v, want the read", m)
	}
	if n := c.completions(); n != 0 {
		t.Error("the write has failed although the target may still carry it out")
	}
	open()
	if m := next(); m.UserData != 6 || m.Result != status.TimeOut {
		t.Errorf("the second to complete is %+v, want the write", m)
	}
}

// stickyProvider creates memory regions of the client's size that cannot be deregistered while it
// is stuck.
type stickyProvider struct {
	rdma.Provider
	stuck atomic.Bool
	hangs chan struct{} // if not nil, regions hang while they are deregistered, until it is closed
	keeps *keeper       // if not nil, keeps every registration
}

// keeper keeps calls until it lets them go.
type keeper struct {
	kept  chan struct{} // has an element for each
	letGo chan struct{}
}

func newKeeper() *keeper { return &keeper{make(chan struct{}, 16), make(chan struct{})} }

func (k *keeper) keep() {
	k.kept <- struct{}{}
	<-k.letGo
}

type stickyDevice struct {
	rdma.Device
	provider *stickyProvider
}

type stickyDomain struct {
	rdma.ProtectionDomain
	provider *stickyProvider
}

type stickyRegion struct {
	rdma.MemoryRegion
	provider *stickyProvider
}

func (p *stickyProvider) Open(address netip.Addr) (rdma.Device, error) {
	device, err := p.Provider.Open(address)
	return stickyDevice{device, p}, err
}

func (d stickyDevice) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	domain, err := d.Device.NewProtectionDomain()
	return stickyDomain{domain, d.provider}, err
}

// Close hides that a device that has kept a registration is still in use.
func (d stickyDevice) Close() error {
	err := d.Device.Close()
	if d.provider.keeps != nil {
		return nil
	}
	return err
}

func (d stickyDevice) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	config.Domain = config.Domain.(stickyDomain).ProtectionDomain
	return d.Device.Connect(ctx, remote, config)
}

func (d stickyDomain) Register(
	region *memory.Region, access memory.Access,
) (rdma.MemoryRegion, error) {
	if d.provider.keeps != nil {
		d.provider.keeps.keep()
	}
	registered, err := d.ProtectionDomain.Register(region, access)
	if err != nil || region.Len() != clientMemory {
		return registered, err
	}
	return stickyRegion{registered, d.provider}, nil
}

func (r stickyRegion) Deregister() error {
	if r.provider.hangs != nil {
		<-r.provider.hangs
	}
	if r.provider.stuck.Load() {
		return status.Errorf(status.Driver, "made up")
	}
	return r.MemoryRegion.Deregister()
}

func TestNoRequestCompletesWhileTheMemoryIsRegistered(t *testing.T) {
	t.Cleanup(relay.SetEndTimes(testkit.Patience, time.Millisecond))
	var targetGate gate
	provider := &stickyProvider{Provider: iwarp.New(iwarp.Options{})}
	c := startChainWith(t, chainOptions{targetPolicy: targetGate.policy(), rdma: provider})
	c.startIO(func() { t.Cleanup(targetGate.close(t)) })
	provider.stuck.Store(true)
	c.loseTarget()
	c.expectUnreleased("made up")
	provider.stuck.Store(false)
	c.expectRelease()
}

// A device that never answers keeps neither the client nor the relay waiting for ever.
func TestNoRequestCompletesWhileADeviceHangs(t *testing.T) {
	// Long enough for what does not hang, on any machine.
	t.Cleanup(relay.SetEndTimes(3*time.Second, time.Millisecond))
	var targetGate gate
	provider := &stickyProvider{Provider: iwarp.New(iwarp.Options{}), hangs: make(chan struct{})}
	c := startChainWith(t, chainOptions{targetPolicy: targetGate.policy(), rdma: provider})
	c.startIO(func() { t.Cleanup(targetGate.close(t)) })
	c.loseTarget()
	c.expectUnreleased("deregister the client's memory")
	close(provider.hangs)
	c.expectRelease()
}

// A session whose device does not answer ends for its client and for observers. It is released when
// the device answers.
func TestASessionEndsAlthoughADeviceKeepsItsRequest(t *testing.T) {
	t.Cleanup(relay.SetAnswerTimeout(time.Millisecond))
	provider := &stickyProvider{Provider: iwarp.New(iwarp.Options{}), keeps: newKeeper()}
	c := startChainWith(t, chainOptions{rdma: provider})
	requests := c.session()
	if err := c.call(requests[0]); err != nil {
		t.Fatal(err)
	}
	var configuring sync.WaitGroup
	configuring.Go(func() {
		if err := c.call(requests[1]); err == nil {
			t.Error("the data path is configured")
		}
	})
	testkit.Receive(t, "the registration", provider.keeps.kept)
	c.connection.Abort()
	configuring.Wait()
	testkit.Eventually(t, "the session is said to be unreleased", func() bool {
		s := c.relay.Channels()[0].OpenSessions
		return len(s) == 1 && s[0].Unreleased
	})
	c.expectUnreleased("carry out a request of the client: the device has not answered")
	close(provider.keeps.letGo)
	c.expectRelease()
}

// A relay ends although a device never answers.
func TestARelayEndsAlthoughADeviceKeepsARequest(t *testing.T) {
	t.Cleanup(relay.SetEndTimes(time.Millisecond, time.Millisecond))
	t.Cleanup(relay.SetAnswerTimeout(time.Millisecond))
	provider := &stickyProvider{Provider: iwarp.New(iwarp.Options{}), keeps: newKeeper()}
	c := startChainWith(t, chainOptions{rdma: provider})
	t.Cleanup(func() { close(provider.keeps.letGo) })
	requests := c.session()
	if err := c.call(requests[0]); err != nil {
		t.Fatal(err)
	}
	var configuring sync.WaitGroup
	configuring.Go(func() { _ = c.call(requests[1]) })
	testkit.Receive(t, "the registration", provider.keeps.kept)
	c.stopRelay()
	configuring.Wait()
}

// hangingDisk completes no change while it hangs.
type hangingDisk struct {
	volume.Volume
	isFenced  bool
	hangs     atomic.Bool
	submitted atomic.Int64
}

func (d *hangingDisk) Info() volume.Info {
	info := d.Volume.Info()
	if d.isFenced {
		info.Fenced, info.UUID = true, volume.UUID{1}
	}
	return info
}

type hangingQueue struct {
	volume.Queue
	disk *hangingDisk
}

func (d *hangingDisk) NewQueue(depth int) (volume.Queue, error) {
	queue, err := d.Volume.NewQueue(depth)
	return hangingQueue{queue, d}, err
}

func (q hangingQueue) Submit(r *volume.Request) error {
	q.disk.submitted.Add(1)
	return q.Queue.Submit(r)
}

func (q hangingQueue) Poll(completed []*volume.Request) int {
	if q.disk.hangs.Load() {
		return 0
	}
	return q.Queue.Poll(completed)
}

// startHangingWrite sets up a session with a write that the target's disk does not finish. The
// relay has a lease of the given length, within which it and the target hear from each other.
func startHangingWrite(
	t *testing.T, lease time.Duration, others ...*fakeTarget,
) (*chain, *hangingDisk) {
	t.Helper()
	disk := &hangingDisk{isFenced: len(others) > 0}
	disk.hangs.Store(true)
	c := startChainWith(t, chainOptions{lease: lease, others: others,
		drainTimeout: retry.Within(0), disk: func(v volume.Volume) volume.Volume {
			disk.Volume = v
			return disk
		}})
	t.Cleanup(func() { disk.hangs.Store(false) }) // before the target stops, which waits for it
	c.openQueue()(iomsg.Message{Type: iomsg.Write, UserData: 5, IOSize: 4096})
	testkit.Eventually(t, "the disk has the write", func() bool { return disk.submitted.Load() == 1 })
	return c, disk
}

// The target has noted the end of the session, and cannot say when the write takes effect: neither
// can the relay, although no lease is left.
func TestNoChangeFailsWhileTheTargetsDiskHangs(t *testing.T) {
	const lease = time.Second
	t.Cleanup(relay.SetEndTimes(5*lease/2, time.Millisecond))
	c, disk := startHangingWrite(t, lease)
	if err := c.relay.EndSession(c.status().OpenSessions[0].ID); err != nil {
		t.Fatal(err)
	}
	c.expectUnreleased("wait until the target has ended the session")
	disk.hangs.Store(false)
	c.expectRelease()
	if n := c.completions(); n != 0 {
		t.Errorf("%d requests complete although the client's connection had been aborted", n)
	}
}

// A target that has noted the end of a session, and goes, never says that the write has ended. The
// relay waits for its lease only.
func TestAChangeFailsWhenTheTargetThatHasNotedTheEndIsGone(t *testing.T) {
	t.Cleanup(relay.SetEndTimes(testkit.Patience, time.Millisecond))
	c, _ := startHangingWrite(t, time.Second)
	if err := c.proxy.listener.Close(); err != nil { // nobody connects again
		t.Fatal(err)
	}
	c.proxy.watch(nil, func(e *controlmsg.Envelope) *controlmsg.Envelope {
		if m, ok := e.Message.(*controlmsg.KeepAlive); ok && len(m.Question.Noted) > 0 {
			c.loseTarget()
		}
		return e
	})
	if err := c.relay.EndSession(c.status().OpenSessions[0].ID); err != nil {
		t.Fatal(err)
	}
	c.expectRelease()
	if n := c.completions(); n != 1 {
		t.Errorf("%d requests complete, want 1", n)
	}
}

// The storage of a target that has been taken over from may never answer it again. Only the target
// that owns the volume can say that nothing of it takes effect any more, and only if it is certain.
func TestAChangeAtAFormerOwnerWhoseDiskHangsFailsWhenTheNextOneConfirms(t *testing.T) {
	const lease = time.Second
	t.Cleanup(relay.SetEndTimes(5*lease/2, time.Millisecond))
	var owns atomic.Bool
	next := startFakeTarget(t, func(int) (error, bool) {
		if !owns.Load() {
			return status.Errorf(status.NoLock, "a stand-by"), true
		}
		return nil, false
	}, func(f *fakeTarget) {
		f.reply.Fenced, f.reply.Sole = true, "fenced"
		f.reply.UUID = volume.UUID{1}
		f.process.Store(1)
	})
	c, _ := startHangingWrite(t, lease, next)
	testkit.Eventually(t, "the relay knows the other one as a stand-by", func() bool {
		return c.status().Targets[1].Link.State == relay.LinkStandBy
	})
	owns.Store(true)
	c.awaitTarget(next)
	c.expectUnreleased("wait until the target has ended the session")
	if next.opened.Load() < 3 {
		t.Error("the relay does not ask the target that it moves to")
	}
	next.confirms.Store(true)
	c.expectRelease()
}

// A relay that stops waits for no disk. It tells the client nothing.
func TestARelayStopsWhileTheTargetsDiskHangs(t *testing.T) {
	const lease = time.Second
	t.Cleanup(relay.SetEndTimes(5*lease/2, time.Millisecond))
	c, _ := startHangingWrite(t, lease)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.stopRelay()
	}()
	testkit.Receive(t, "the relay has stopped", stopped)
	if n := c.completions(); n != 0 {
		t.Errorf("%d requests complete although the disk has the write", n)
	}
}

func TestDestroyObjectsFailsWhileTheMemoryIsRegistered(t *testing.T) {
	t.Cleanup(relay.SetEndTimes(testkit.Patience, time.Millisecond))
	var targetGate gate
	provider := &stickyProvider{Provider: iwarp.New(iwarp.Options{})}
	c := startChainWith(t, chainOptions{targetPolicy: targetGate.policy(), rdma: provider})
	var resumeTarget func()
	c.startIO(func() { resumeTarget = targetGate.close(t) })
	t.Cleanup(resumeTarget)
	provider.stuck.Store(true)
	if err := c.call(&controlmsg.DestroyObjects{}); !errors.Is(err, status.Driver) {
		t.Errorf("destroy_objects: %v", err)
	}
	if n := c.completions(); n != 0 {
		t.Errorf("%d requests completed while the target had access", n)
	}
	provider.stuck.Store(false)
	resumeTarget()
	if err := c.call(&controlmsg.DestroyObjects{}); err != nil {
		t.Errorf("destroy_objects again: %v", err)
	}
	if n := c.completions(); n != 1 {
		t.Errorf("%d requests completed, want 1", n)
	}
	c.expectRelease()
}

// Client, relay, and target have the same timeouts, and the client of a former session's heir gets
// the reason nevertheless, and may try again on the same connection.
func TestAnHeirLearnsInTimeWhatItWaitsFor(t *testing.T) {
	for name, test := range map[string]struct {
		instance [16]byte
		reason   string
	}{
		"of the same client, at the relay": {[16]byte{7}, "former session is released"},
		"of another client, at the target": {[16]byte{8}, "has no IO in flight any more"},
	} {
		t.Run(name, func(t *testing.T) {
			var targetGate gate
			c := startChainWith(t, chainOptions{targetPolicy: targetGate.policy(),
				controlTimeout: 3 * time.Second})
			send := c.openQueue()
			open := targetGate.close(t)
			t.Cleanup(open)
			send(iomsg.Message{Type: iomsg.Write, UserData: 5, IOSize: 4096})
			testkit.Eventually(t, "the write is in flight", func() bool {
				s := c.status().OpenSessions
				return len(s) == 1 && len(s[0].Queues) == 1 && s[0].Queues[0].InFlight == 1
			})
			c.connection.Abort()
			c.connect()
			heir := c.session()
			configure := heir[1].(*controlmsg.ConfigureDataPath)
			configure.ClientInstance, configure.Epoch = test.instance, 2
			if err := c.call(heir[0]); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the former session ends at the target", func() bool {
				err := c.call(configure)
				if err != nil && strings.Contains(err.Error(), test.reason) {
					if !errors.Is(err, status.Again) || controlmsg.RetryAfter(err) != time.Second {
						t.Errorf("configure: %v, again after %v", err, controlmsg.RetryAfter(err))
					}
					return true
				}
				if !errors.Is(err, status.Again) {
					t.Fatalf("configure: %v", err)
				}
				return false
			})
			open()
			testkit.Eventually(t, "the heir opens", func() bool {
				err := c.call(configure)
				if err != nil && !errors.Is(err, status.Again) {
					t.Fatalf("configure: %v", err)
				}
				return err == nil
			})
		})
	}
}
