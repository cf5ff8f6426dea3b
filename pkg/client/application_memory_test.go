// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// application returns memory that the application has made, for a queue of testDepth buffers.
func application(t *testing.T) *memory.Region {
	t.Helper()
	r, err := memory.Alloc("application", testDepth*testBlock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { release(t, r) })
	return r
}

func TestTheRelayUsesTheMemoryOfTheApplicationInPlace(t *testing.T) {
	r := newSilentRelay(t)
	shared := application(t)
	copy(shared.Bytes(), "before Open")
	v := r.openWith(client.Config{Memory: shared, IOTimeout: testkit.Patience})
	q := v.Queue(0)
	if &v.Memory()[0] != &shared.Bytes()[0] || &q.Memory()[0] != &shared.Bytes()[0] ||
		uint64(len(v.Memory())) != shared.Len() {
		t.Error("the volume has other memory")
	}
	imported := <-r.imported
	got := make([]byte, 11)
	if err := imported.CopyOut(got, 0); err != nil || string(got) != "before Open" {
		t.Errorf("the relay finds %q, %v", got, err)
	}
	if err := imported.CopyIn(testBlock, []byte("relay")); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(shared.Bytes()[testBlock:], []byte("relay")) {
		t.Error("the application does not find what the relay has written")
	}
	release(t, imported)
	v.Abort()
	if v.Memory() != nil || q.Memory() != nil {
		t.Error("the closed volume has memory")
	}
	shared.Bytes()[0]++ // still mapped
}

func TestCloseWaitsForTheMemoryOfTheApplication(t *testing.T) {
	t.Parallel()
	r := newSilentRelay(t)
	shared := application(t)
	v := r.openWith(client.Config{Memory: shared, ReleaseTimeout: testkit.Patience})
	r.cut()
	closed := make(chan error, 1)
	go func() { closed <- v.Close(context.Background()) }()
	imported := <-r.imported
	select {
	case err := <-closed:
		t.Fatalf("Close has returned %v while the relay has the memory", err)
	case <-time.After(50 * time.Millisecond):
	}
	release(t, imported)
	if err := <-closed; errors.Is(err, client.ErrQuarantined) {
		t.Error(err)
	}
	if err := v.AwaitMemory(t.Context()); err != nil {
		t.Error(err)
	}
	claim, err := shared.Claim(true)
	if err != nil {
		t.Fatalf("the closed volume claims the memory: %v", err)
	}
	claim()
}

func TestMemoryThatARelayKeepsIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	r := newSilentRelay(t)
	shared := application(t)
	config := client.Config{Memory: shared, ReleaseTimeout: 50 * time.Millisecond}
	v := r.openWith(config)
	if err := v.AwaitMemory(t.Context()); !errors.Is(err, status.BadState) {
		t.Errorf("wait for the memory of an open volume: %v", err)
	}
	r.cut()
	if err := v.Close(context.Background()); !errors.Is(err, client.ErrQuarantined) {
		t.Errorf("Close returned %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := v.AwaitMemory(ctx); !errors.Is(err, client.ErrQuarantined) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("AwaitMemory returned %v", err)
	}
	if _, err := shared.Claim(true); !errors.Is(err, status.InUse) {
		t.Errorf("another user gets the memory: %v", err)
	}
	release(t, <-r.imported)
	if err := v.AwaitMemory(t.Context()); err != nil {
		t.Error(err)
	}
	config.Memory = shared
	again := r.openWith(config)
	again.Abort()
	release(t, <-r.imported)
	if err := again.AwaitMemory(t.Context()); err != nil {
		t.Errorf("after Abort: %v", err)
	}
}

// The memory cannot be replaced, so the volume comes back when the relay has released it.
func TestAVolumeIsReopenedWhenItHasTheApplicationsMemoryBack(t *testing.T) {
	t.Parallel()
	r := newSilentRelay(t)
	shared := application(t)
	config := reconnecting()
	config.Memory = shared
	v := r.openWith(config)
	q := v.Queue(0)
	submit(t, q, 7)
	r.cut()
	if got := results(t, q, 1)[0]; !got.Quarantined || got.Code != status.ConnectionReset {
		t.Errorf("outcome is %+v", got)
	}
	if held := v.Quarantined(); held != shared.Len() {
		t.Errorf("%d bytes are in quarantine, want %d", held, shared.Len())
	}
	for range 20 {
		if err := q.Submit(&client.Request{Type: client.Flush}); !errors.Is(err,
			client.ErrReopening) {
			t.Errorf("submit while the relay has the memory: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	first := q.Session()
	select {
	case <-r.started:
		t.Fatal("the volume is reopened while the relay has the memory")
	default:
	}
	release(t, <-r.imported)
	<-r.started
	testkit.Eventually(t, "the queue has a session", func() bool {
		err := q.Submit(&client.Request{Type: client.Read, Length: testBlock})
		return err == nil
	})
	if q.Session() == first || &q.Memory()[0] != &shared.Bytes()[0] || v.Quarantined() != 0 {
		t.Errorf("session %d after %d, %d bytes in quarantine", q.Session(), first,
			v.Quarantined())
	}
}

func TestVolumesShareTheMemoryOfTheApplicationUnlessTheyCopy(t *testing.T) {
	r, other := newFakeRelay(t), newFakeRelay(t)
	shared, err := memory.Alloc("application", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, shared)
	open := func(r *fakeRelay, syncDepth int) (*client.Volume, error) {
		return client.Open(t.Context(), client.Config{Provider: r.provider,
			Device: emulated.DefaultHostDevice, Queues: 1, Depth: testDepth, BufferSize: testBlock,
			SyncDepth: syncDepth, ControlTimeout: testkit.Patience, Memory: shared})
	}
	first, err := open(r, -1)
	if err != nil {
		t.Fatal(err)
	}
	second, err := open(other, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(r, 2); !errors.Is(err, status.InUse) {
		t.Errorf("open with blocking methods beside others: %v", err)
	}
	first.Abort()
	second.Abort()
	for _, v := range []*client.Volume{first, second} {
		if err := v.AwaitMemory(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	alone, err := open(r, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Abort()
	if _, err := open(other, -1); !errors.Is(err, status.InUse) {
		t.Errorf("open beside one with blocking methods: %v", err)
	}
	if n := len(alone.Memory()); n != 1<<20-4*testBlock {
		t.Errorf("the queues have %d bytes", n)
	}
}

// opaque is the handle of memory that only a device reaches.
type opaque struct{}

func (opaque) Device() memory.Device { return memory.Device{} }

func TestMemoryThatCannotBeUsedIsAnError(t *testing.T) {
	small, err := memory.Alloc("small", 4*testBlock)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, small)
	device := memory.NewOpaque(opaque{}, 0, 1<<20, nil)
	r := newFakeRelay(t)
	for name, c := range map[string]struct {
		change func(*client.Config)
		want   status.Code
		says   string
	}{
		"too small for the queues": {func(c *client.Config) { c.MemorySize = 1 << 20 },
			status.TooBig, "Config.Memory has 16384 bytes"},
		"too small for the blocking methods": {func(c *client.Config) { c.SyncDepth = 3 },
			status.TooBig, "2 * SyncDepth * BufferSize"},
		"no room for the queues": {func(c *client.Config) { c.SyncDepth = 2 },
			status.TooBig, "the queues need 1"},
		"of the Go heap": {func(c *client.Config) {
			c.Memory = memory.Wrap(make([]byte, 1<<20))
		}, status.NotSupported, "no file that the peer can map"},
		"of a device": {func(c *client.Config) { c.Memory = device },
			status.NotSupported, "Config.Memory belongs to a device"},
	} {
		config := client.Config{Provider: r.provider, Device: emulated.DefaultHostDevice,
			Queues: 1, Depth: testDepth, BufferSize: testBlock, SyncDepth: -1,
			ControlTimeout: testkit.Patience, Memory: small}
		c.change(&config)
		v, err := client.Open(t.Context(), config)
		if err == nil {
			v.Abort()
		}
		if !errors.Is(err, c.want) || !bytes.Contains([]byte(err.Error()), []byte(c.says)) {
			t.Errorf("memory that is %s: %v", name, err)
		}
		if c.want == status.NotSupported {
			continue
		}
		free, err := small.Claim(true)
		if err != nil {
			t.Fatalf("memory that is %s: %v", name, err)
		}
		free()
	}
}
