// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// end is one end of a connection, with registered memory of its own.
type end struct {
	t          *testing.T
	device     rdma.Device
	domain     rdma.ProtectionDomain
	queue      rdma.CompletionQueue
	memory     rdma.MemoryRegion
	bytes      []byte
	connection rdma.Connection
	completed  []rdma.Completion
}

const (
	endMemory = 4096
	endSends  = 8
	// ownContext is the context of every connection: hooks must not need unique ones.
	ownContext = 42
)

func newEnd(t *testing.T, provider rdma.Provider) *end {
	t.Helper()
	e := &end{t: t, bytes: make([]byte, endMemory)}
	var err error
	if e.device, err = provider.Open(loopback); err != nil {
		t.Fatal(err)
	}
	if e.domain, err = e.device.NewProtectionDomain(); err != nil {
		t.Fatal(err)
	}
	if e.queue, err = e.device.NewCompletionQueue(64); err != nil {
		t.Fatal(err)
	}
	e.memory, err = e.domain.Register(memory.Wrap(e.bytes), memory.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *end) config() rdma.ConnectionConfig {
	c := rdma.ConnectionConfig{Domain: e.domain, Queue: e.queue, Context: ownContext,
		SendRequests: endSends, ReceiveRequests: endSends}
	for i := range uint64(endSends) {
		c.Receives = append(c.Receives, rdma.ReceiveRequest{ID: 100 + i, Local: e.segment(64)})
	}
	return c
}

func (e *end) segment(length uint32) rdma.Segment {
	return rdma.Segment{Key: e.memory.LocalKey(), Address: e.memory.Base(), Length: length}
}

// pair connects an end with hooks to one without.
func pair(t *testing.T, injector *fault.Injector) (hooked, plain *end) {
	t.Helper()
	runtime.LockOSThread() // the thread that polls owns the connections
	t.Cleanup(runtime.UnlockOSThread)
	hooked, plain = newEnd(t, wrap(injector)), newEnd(t, iwarp.New(iwarp.Options{}))
	t.Cleanup(func() {
		hooked.connection.Close()
		for _, e := range []*end{hooked, plain} {
			e.await("the end", plain, hooked, func() bool { return e.has(rdma.OpDisconnected) })
		}
		for _, e := range []*end{hooked, plain} {
			if err := errors.Join(e.memory.Deregister(), e.queue.Close(), e.domain.Close(),
				e.device.Close()); err != nil {
				t.Error(err)
			}
		}
	})
	listener, err := plain.device.Listen(t.Context(), anyPort)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		request, err := listener.Accept(t.Context())
		if err == nil {
			plain.connection, err = request.Accept(t.Context(), plain.config())
		}
		accepted <- err
	}()
	hooked.connection, err = hooked.device.Connect(t.Context(), listener.Address(),
		hooked.config())
	if err = errors.Join(err, <-accepted, listener.Close()); err != nil {
		t.Fatal(err)
	}
	return hooked, plain
}

// await polls both ends until condition holds.
func (e *end) await(what string, a, b *end, condition func() bool) {
	e.t.Helper()
	testkit.Eventually(e.t, what+" has come", func() bool {
		a.poll()
		b.poll()
		return condition()
	})
}

func (e *end) poll() {
	var completions [4]rdma.Completion
	e.completed = append(e.completed, completions[:e.queue.Poll(completions[:])]...)
}

func (e *end) has(opcode rdma.Opcode) bool { return e.count(opcode) > 0 }

func (e *end) count(opcode rdma.Opcode) int {
	n := 0
	for _, c := range e.completed {
		if c.Opcode == opcode {
			n++
		}
		if c.Context != ownContext {
			e.t.Errorf("completion %+v has another context", c)
		}
	}
	return n
}

func (e *end) send(id uint64) error {
	err := e.connection.PostSend([]rdma.SendRequest{
		{ID: id, Opcode: rdma.OpSend, Local: e.segment(16)}})
	e.connection.Flush()
	return err
}

func (e *end) mustSend(ids ...uint64) {
	e.t.Helper()
	for _, id := range ids {
		if err := e.send(id); err != nil {
			e.t.Fatal(err)
		}
	}
}

func TestADroppedSendAndAllBehindItAreFlushed(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:post_send:nth=3:drop")
	hooked, plain := pair(t, injector)
	hooked.mustSend(1, 2)
	hooked.await("two messages", hooked, plain, func() bool { return plain.count(rdma.OpReceive) == 2 })
	hooked.mustSend(3, 4)
	hooked.await("the end", hooked, plain, func() bool { return hooked.has(rdma.OpDisconnected) })
	outcomes := make(map[uint64]rdma.CompletionStatus)
	for _, c := range hooked.completed {
		if c.Opcode == rdma.OpSend {
			outcomes[c.ID] = c.Status
		}
	}
	if outcomes[1] != rdma.StatusSuccess || outcomes[2] != rdma.StatusSuccess ||
		outcomes[3] != rdma.StatusFlushed || outcomes[4] != rdma.StatusFlushed ||
		len(outcomes) != 4 {
		t.Errorf("the sends ended with %v", outcomes)
	}
	if last := hooked.completed[len(hooked.completed)-1]; last.Opcode != rdma.OpDisconnected ||
		last.Status != rdma.StatusFatal || hooked.connection.Err() == nil {
		t.Errorf("the last completion is %+v, the reason %v", last, hooked.connection.Err())
	}
	hooked.await("the peer's end", hooked, plain,
		func() bool { return plain.has(rdma.OpDisconnected) })
	for _, c := range plain.completed[2:] {
		if c.Opcode == rdma.OpReceive && c.Status == rdma.StatusSuccess {
			t.Error("the peer received a message behind the lost one")
		}
	}
	if err := hooked.send(5); !errors.Is(err, status.NotConnected) {
		t.Errorf("after the end, PostSend returned %v", err)
	}
}

func TestWhatIsFrozenArrivesInOrderAfterTheRelease(t *testing.T) {
	for _, rule := range []string{"rdma:post_send:nth=2:freeze", "rdma:poll:nth=2:freeze"} {
		t.Run(rule, func(t *testing.T) {
			injector, _ := faulttest.New(t, rule)
			hooked, plain := pair(t, injector)
			hooked.mustSend(1, 2, 3)
			hooked.await("the rule", hooked, plain,
				func() bool { return injector.Rules()[0].Matches > 0 && hooked.has(rdma.OpSend) })
			for range 100 {
				hooked.poll()
				plain.poll()
			}
			if n := hooked.count(rdma.OpSend); n != 1 {
				t.Fatalf("%d sends have completed", n)
			}
			injector.Release()
			hooked.await("three sends", hooked, plain,
				func() bool {
					return hooked.count(rdma.OpSend) == 3 && plain.count(rdma.OpReceive) == 3
				})
			for i, c := range hooked.completed {
				if c.ID != uint64(i)+1 || c.Status != rdma.StatusSuccess {
					t.Errorf("completion %d is %+v", i, c)
				}
			}
		})
	}
}

func TestACorruptedMessageDiffersInOneBit(t *testing.T) {
	const offset = 1024 // of what is received after the receives that came with the connection
	injector, _ := faulttest.New(t, "rdma:receive:nth=2:corrupt",
		fmt.Sprintf("rdma:receive:nth=%d:corrupt", endSends+1))
	hooked, plain := pair(t, injector)
	for i := range plain.bytes {
		plain.bytes[i] = byte(i)
	}
	later := hooked.segment(64)
	later.Address += offset
	for n := 1; n <= endSends+2; n++ {
		clear(hooked.bytes)
		message, rest := hooked.bytes[:16], hooked.bytes[16:]
		if n > endSends {
			message, rest = hooked.bytes[offset:offset+16], hooked.bytes[offset+16:]
			if err := hooked.connection.PostReceive([]rdma.ReceiveRequest{
				{ID: 200, Local: later}}); err != nil {
				t.Fatal(err)
			}
		}
		plain.mustSend(uint64(n))
		hooked.await("a message", hooked, plain,
			func() bool { return hooked.count(rdma.OpReceive) == n })
		wrong, want := 0, 0
		if n == 2 || n == endSends+1 {
			want = 1
		}
		for i, b := range message {
			wrong += bits.OnesCount8(b ^ byte(i))
		}
		if wrong != want {
			t.Errorf("message %d has %d wrong bits", n, wrong)
		}
		if slices.ContainsFunc(rest, func(b byte) bool { return b != 0 }) {
			t.Errorf("memory behind message %d has changed", n)
		}
	}
}

// Close of a connection completes what a rule holds back, before OpDisconnected.
func TestClosingFlushesWhatIsFrozen(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:post_send:freeze")
	hooked, plain := pair(t, injector)
	hooked.mustSend(1, 2)
	hooked.connection.Close()
	hooked.await("the end", hooked, plain, func() bool { return hooked.has(rdma.OpDisconnected) })
	var flushed []uint64
	for _, c := range hooked.completed {
		if c.Opcode == rdma.OpSend && c.Status == rdma.StatusFlushed {
			flushed = append(flushed, c.ID)
		}
	}
	if len(flushed) != 2 || flushed[0] != 1 || flushed[1] != 2 {
		t.Errorf("flushed were %v, of %+v", flushed, hooked.completed)
	}
}

func TestASendQueueThatIsFrozenIsBounded(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:post_send:nth=1:freeze")
	hooked, _ := pair(t, injector)
	for i := range uint64(endSends) {
		hooked.mustSend(i)
	}
	if err := hooked.send(99); !errors.Is(err, status.Full) {
		t.Errorf("a send too many returned %v", err)
	}
}

func TestAReleaseWakesAThreadThatSleeps(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:post_send:nth=1:freeze")
	hooked, plain := pair(t, injector)
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	source := &polled{Waiter: hooked.queue, poll: func() int {
		before := len(hooked.completed)
		hooked.poll()
		plain.poll()
		return len(hooked.completed) - before
	}}
	if err := engine.Add(source); err != nil {
		t.Fatal(err)
	}
	defer engine.Remove(source)
	hooked.mustSend(1)
	go func() {
		for engine.Stats().Sleeps == 0 {
			time.Sleep(time.Millisecond)
		}
		injector.Release()
	}()
	for !hooked.has(rdma.OpSend) {
		engine.Idle(engine.Progress())
	}
	if late := engine.Stats().LateWakeups; late != 0 {
		t.Errorf("%d wake-ups were lost", late)
	}
}

type polled struct {
	progress.Waiter
	poll func() int
}

func (p *polled) Poll() int { return p.poll() }

func TestInjectedErrorsReachTheCaller(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:open:nth=2:error=DRIVER", "rdma:register:nth=2:error=NO_MEMORY",
		"rdma:connect:nth=2:error=TIME_OUT", "rdma:listen:error=IN_USE",
		"rdma:post_send:nth=1:error=IO_FAILED", "rdma:post_receive:error=FULL",
		"rdma:deregister:nth=1:error=IN_USE")
	hooked, _ := pair(t, injector)
	ctx := context.Background()
	_, openErr := wrap(injector).Open(loopback)
	_, registerErr := hooked.domain.Register(memory.Wrap(make([]byte, 64)), memory.LocalWrite)
	_, connectErr := hooked.device.Connect(ctx, anyPort, hooked.config())
	_, listenErr := hooked.device.Listen(ctx, anyPort)
	other, err := hooked.domain.Register(memory.Wrap(make([]byte, 64)), memory.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		err  error
		code status.Code
	}{
		"open":         {openErr, status.Driver},
		"register":     {registerErr, status.NoMemory},
		"connect":      {connectErr, status.TimeOut},
		"listen":       {listenErr, status.InUse},
		"post_send":    {hooked.send(1), status.IOFailed},
		"post_receive": {hooked.connection.PostReceive(nil), status.Full},
		"deregister":   {other.Deregister(), status.InUse},
	} {
		if !errors.Is(c.err, c.code) || !errors.Is(c.err, fault.ErrInjected) {
			t.Errorf("%s returned %v, want %v", what, c.err, c.code)
		}
	}
	hooked.mustSend(2) // nothing was posted before
}

func TestARejectedAcceptanceReachesThePeer(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:accept:error=FULL")
	hooked, plain := newEnd(t, wrap(injector)), newEnd(t, iwarp.New(iwarp.Options{}))
	listener, err := hooked.device.Listen(t.Context(), anyPort)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		request, err := listener.Accept(t.Context())
		if err == nil {
			_, err = request.Accept(t.Context(), hooked.config())
		}
		accepted <- err
	}()
	var rejected *rdma.RejectedError
	if _, err := plain.device.Connect(t.Context(), listener.Address(),
		plain.config()); !errors.As(err, &rejected) {
		t.Errorf("the peer gets %v", err)
	}
	if err := <-accepted; !errors.Is(err, status.Full) || !errors.Is(err, fault.ErrInjected) {
		t.Errorf("Accept returned %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	for _, e := range []*end{hooked, plain} {
		if err := errors.Join(e.memory.Deregister(), e.queue.Close(), e.domain.Close(),
			e.device.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestAProviderWithoutRulesIsNotWrapped(t *testing.T) {
	inner := rdma.Provider(iwarp.New(iwarp.Options{}))
	injector, _ := faulttest.New(t, "volume:write:trace")
	for _, i := range []*fault.Injector{nil, injector} {
		if hook.Wrap(inner, hook.Config{Injector: i}) != inner {
			t.Error("there is a wrapper that has nothing to do")
		}
	}
}

func TestOperationsThatNoRuleMatchesDoNotAllocate(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:any:while=off:freeze", "rdma:post_send:while=off:drop",
		"rdma:poll:after=1000000000:delay=1s")
	hooked, plain := pair(t, injector)
	sends := []rdma.SendRequest{{ID: 1, Opcode: rdma.OpSend, Local: hooked.segment(16)}}
	receives := []rdma.ReceiveRequest{{ID: 100, Local: plain.segment(64)}}
	completions := make([]rdma.Completion, 4)
	if n := testing.AllocsPerRun(100, func() {
		if err := hooked.connection.PostSend(sends); err != nil {
			t.Fatal(err)
		}
		hooked.connection.Flush()
		for sent, received := 0, 0; sent+received < 2; {
			sent += hooked.queue.Poll(completions)
			received += plain.queue.Poll(completions)
		}
		if err := plain.connection.PostReceive(receives); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}
