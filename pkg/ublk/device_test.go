// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Operations and flags of requests, as the kernel numbers them.
const (
	opRead, opWrite, opFlush, opDiscard, opWriteZeroes = 0, 1, 2, 3, 5

	fua, noUnmap = 1 << 13, 1 << 15
)

func startDeviceWith(t *testing.T, k *fakeKernel, config Config, export blockio.Export) *Device {
	t.Helper()
	config.Policy = progress.Policy{Mode: progress.Event}
	d, err := startWith(t.Context(), k, config, export)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Leave(cancelled()); err != nil && !errors.Is(err, status.ErrClosed) {
			t.Error(err)
		}
	})
	return d
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// do carries out a request on queue 0, and returns its result.
func (k *fakeKernel) do(t *testing.T, r *fakeRequest) int32 {
	t.Helper()
	return testkit.Receive(t, "the result", k.devices[3].submit(0, r))
}

func TestRequestsDoWhatTheyDoToAnArray(t *testing.T) {
	const size = 1 << 20
	k, export := newFakeKernel(), newMemoryExport(size)
	d := startDeviceWith(t, k, Config{ID: 3, Queues: 2, Depth: 16, BlockSize: 512}, export)
	random := seedtest.Random(t, 0)
	model := make([]byte, size)
	for range 200 {
		// Requests of one round are in progress together, on ranges of their own.
		var all []*fakeRequest
		start := uint64(0)
		for range 1 + random.IntN(16) {
			r, next := randomRequest(random, start, size/sectorSize)
			if start = next; start == size/sectorSize {
				break
			}
			all = append(all, r)
		}
		k.mu.Lock()
		k.copyLater = random.IntN(4)
		k.mu.Unlock()
		var done []chan int32
		for i, r := range all {
			done = append(done, k.devices[3].submit(i%2, r))
		}
		for i, r := range all {
			want := int32(0)
			if r.operation <= opWrite {
				want = int32(len(r.data))
			}
			if got := testkit.Receive(t, "the result", done[i]); got != want {
				t.Fatalf("%+v returns %d, want %d", r, got, want)
			}
			part := model[r.start*sectorSize:][:r.sectors*sectorSize]
			switch r.operation {
			case opRead:
				if !bytes.Equal(r.data, part) {
					t.Fatalf("a read of %d sectors at %d returns other data", r.sectors, r.start)
				}
			case opWrite:
				copy(part, r.data)
			case opDiscard, opWriteZeroes:
				clear(part)
			}
		}
	}
	if !bytes.Equal(export.content, model) {
		t.Error("the disk has another content")
	}
	s := d.Status()
	if all, failed := s.Answered(); failed != 0 || all != uint64(len(export.operations())) ||
		s.InFlight != 0 || s.BytesRead == 0 || s.BytesWritten == 0 {
		t.Errorf("status %+v", s)
	}
}

// randomRequest returns a request for a range behind start, and the end of the range.
func randomRequest(random *rand.Rand, start, sectors uint64) (*fakeRequest, uint64) {
	start = min(start+random.Uint64N(40), sectors)
	n := min(1+random.Uint64N((testBuffer-4*4096)/sectorSize), sectors-start)
	r := &fakeRequest{operation: []uint8{opRead, opWrite, opWrite, opFlush, opDiscard,
		opWriteZeroes}[random.IntN(6)], start: start, sectors: uint32(n)}
	switch r.operation {
	case opFlush:
		r.start, r.sectors = 0, 0
	case opRead, opWrite:
		r.data = make([]byte, n*sectorSize)
		for i := range r.data {
			r.data[i] = byte(random.Uint32())
		}
	}
	return r, start + n
}

func TestFlagsReachTheDisk(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	startDeviceWith(t, k, Config{ID: 3}, export)
	const hints = 1<<8 | 1<<11 | 1<<16
	for _, r := range []*fakeRequest{
		{operation: opWrite, flags: fua, sectors: 8, data: make([]byte, 4096)},
		{operation: opWrite, flags: hints, sectors: 8, data: make([]byte, 4096)},
		{operation: opWriteZeroes, flags: noUnmap, sectors: 8},
		{operation: opWriteZeroes, flags: fua | hints, sectors: 8},
		{operation: opDiscard, sectors: 8, start: 16}, {operation: opFlush},
		{operation: opRead, flags: fua, sectors: 8, data: make([]byte, 4096)},
	} {
		if result := k.do(t, r); result < 0 {
			t.Errorf("%+v: %d", r, result)
		}
	}
	var got []blockio.Operation
	for _, op := range export.operations() {
		got = append(got, blockio.Operation{Command: op.Command, Flags: op.Flags, Offset: op.Offset,
			Length: op.Length})
	}
	want := []blockio.Operation{
		{Command: blockio.Write, Flags: blockio.FUA, Length: 4096},
		{Command: blockio.Write, Length: 4096},
		{Command: blockio.WriteZeroes, Flags: blockio.NoHole, Length: 4096},
		{Command: blockio.WriteZeroes, Flags: blockio.FUA, Length: 4096},
		{Command: blockio.Trim, Offset: 8192, Length: 4096}, {Command: blockio.Flush},
		{Command: blockio.Read, Length: 4096},
	}
	if !slices.EqualFunc(got, want, func(a, b blockio.Operation) bool {
		return a.Command == b.Command && a.Flags == b.Flags && a.Offset == b.Offset &&
			a.Length == b.Length
	}) {
		t.Errorf("the disk has seen %+v, want %+v", got, want)
	}
}

func TestRequestsThatTheDeviceDoesNotPromiseNeverReachTheDisk(t *testing.T) {
	const sectors = 2048
	longest := uint32(testBuffer / sectorSize)
	for name, c := range map[string]struct {
		request fakeRequest
		want    syscall.Errno
		config  Config
		change  func(*blockio.Info)
	}{
		"unknown operation": {fakeRequest{operation: 4, sectors: 8}, syscall.EOPNOTSUPP, Config{}, nil},
		"zone append":       {fakeRequest{operation: 13, sectors: 8}, syscall.EOPNOTSUPP, Config{}, nil},
		"behind the end":    {fakeRequest{start: sectors, sectors: 8}, syscall.EINVAL, Config{}, nil},
		"across the end":    {fakeRequest{start: sectors - 8, sectors: 16}, syscall.EINVAL, Config{}, nil},
		"overflow":          {fakeRequest{start: 1<<64 - 8, sectors: 16}, syscall.EINVAL, Config{}, nil},
		"overflow of bytes": {fakeRequest{start: 1 << 55, sectors: 8}, syscall.EINVAL, Config{}, nil},
		"nothing":           {fakeRequest{}, syscall.EINVAL, Config{}, nil},
		"too long":          {fakeRequest{sectors: longest + 8}, syscall.EINVAL, Config{}, nil},
		"part of a block": {fakeRequest{start: 1, sectors: 8}, syscall.EINVAL,
			Config{BlockSize: 4096}, nil},
		"discard across the end": {fakeRequest{operation: opDiscard, start: 8, sectors: sectors},
			syscall.EINVAL, Config{}, nil},
		"write to a read-only device": {fakeRequest{operation: opWrite, sectors: 8,
			data: make([]byte, 4096)}, syscall.EPERM, Config{ReadOnly: true}, nil},
		"discard of a read-only disk": {fakeRequest{operation: opDiscard, sectors: 8}, syscall.EPERM,
			Config{}, func(i *blockio.Info) { i.ReadOnly = true }},
		"discard": {fakeRequest{operation: opDiscard, sectors: 8}, syscall.EOPNOTSUPP, Config{},
			func(i *blockio.Info) { i.CanTrim = false }},
		"write zeroes": {fakeRequest{operation: opWriteZeroes, sectors: 8}, syscall.EOPNOTSUPP,
			Config{}, func(i *blockio.Info) { i.CanWriteZeroes = false }},
	} {
		t.Run(name, func(t *testing.T) {
			k, export := newFakeKernel(), newMemoryExport(sectors*sectorSize)
			if c.change != nil {
				c.change(&export.info)
			}
			c.config.ID = 3
			d := startDeviceWith(t, k, c.config, export)
			if result := k.do(t, &c.request); result != -int32(c.want) {
				t.Errorf("result %d, want %v", result, c.want)
			}
			if seen := export.operations(); len(seen) > 0 {
				t.Errorf("the disk has seen %+v", seen)
			}
			if s := d.Status(); s.InFlight != 0 {
				t.Errorf("%d requests are in flight", s.InFlight)
			}
			if k.do(t, &fakeRequest{operation: opFlush}) != 0 {
				t.Error("the queue does not go on")
			}
		})
	}
}

func TestErrorsOfTheDiskReachTheKernel(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	startDeviceWith(t, k, Config{ID: 3}, export)
	for _, failure := range []blockio.Errno{blockio.IOError, blockio.NoSpace, blockio.Shutdown} {
		export.set(func() { export.fail = failure })
		for operation := range uint8(4) {
			r := &fakeRequest{operation: operation, sectors: 8, data: make([]byte, 4096)}
			if result := k.do(t, r); result != -int32(failure) {
				t.Errorf("operation %d: result %d, want %d", operation, result, -int32(failure))
			}
		}
	}
	export.set(func() { export.fail, export.short = blockio.Success, true })
	read := &fakeRequest{sectors: 8, data: make([]byte, 4096)}
	if result := k.do(t, read); result != -int32(syscall.EIO) {
		t.Errorf("a disk that does less than it says: result %d", result)
	}
}

func TestACopyThatTheKernelCannotMakeIsNotAWrite(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	startDeviceWith(t, k, Config{ID: 3}, export)
	k.copyLess = true
	write := func() int32 {
		return k.do(t, &fakeRequest{operation: opWrite, sectors: 8, data: make([]byte, 4096)})
	}
	if result := write(); result != -int32(syscall.EIO) {
		t.Errorf("result %d", result)
	}
	if seen := export.operations(); len(seen) > 0 {
		t.Errorf("the disk has seen %+v", seen)
	}
	if result := write(); result != 4096 {
		t.Errorf("afterwards: result %d", result)
	}
}

func TestWhatTheProtocolDoesNotKnowEndsTheDevice(t *testing.T) {
	for name, change := range map[string]func(c *completion){
		"tag behind the last": func(c *completion) { c.tag = DefaultDepth },
		"huge tag":            func(c *completion) { c.tag = 1<<64 - 1 },
		"unknown result":      func(c *completion) { c.result = 7 },
		"error":               func(c *completion) { c.result = -int32(syscall.EINVAL) },
		"write without data":  func(c *completion) { c.result = min(c.result, resultOK) },
		"tag that the server has": func(c *completion) {
			if c.tag == 1 {
				c.tag = 0
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, export := newFakeKernel(), newMemoryExport(1<<20)
			d := startDeviceWith(t, k, Config{ID: 3}, export)
			export.set(func() { export.held = true })
			k.mu.Lock()
			k.hostile = change
			k.mu.Unlock()
			for range 2 {
				k.devices[3].submit(0, &fakeRequest{sectors: 8, data: make([]byte, 4096)})
			}
			k.devices[3].submit(0, &fakeRequest{operation: opWrite, sectors: 8,
				data: make([]byte, 4096)})
			testkit.Receive(t, "the device's end", d.Done())
			if err := d.Err(); !errors.Is(err, status.Unexpected) ||
				!strings.Contains(err.Error(), "/dev/ublkb3") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestTheNextServerGetsWhatWasNotAnswered(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	first := startDeviceWith(t, k, Config{ID: 3, Queues: 2, Depth: 8, Cookie: 0x1234}, export)
	export.set(func() { export.held = true })
	var done []chan int32
	for i := range uint64(8) {
		done = append(done, k.devices[3].submit(int(i%2), &fakeRequest{operation: opWrite,
			start: 8 * i, sectors: 8, data: bytes.Repeat([]byte{byte(i + 1)}, 4096)}))
	}
	testkit.Eventually(t, "the disk has requests", func() bool {
		return len(export.operations()) > 0
	})
	if err := first.Leave(cancelled()); err != nil {
		t.Fatal(err)
	}
	if err := first.Leave(t.Context()); !errors.Is(err, status.ErrClosed) {
		t.Errorf("leaving twice: %v", err)
	}
	if export.open != 0 {
		t.Errorf("%d disks are open", export.open)
	}
	found, err := existing(t.Context(), k, 3)
	if err != nil || found != (Existing{ID: 3, Queues: 2, Depth: 8, Cookie: 0x1234,
		Process: os.Getpid()}) {
		t.Errorf("found %+v, error %v", found, err)
	}
	export.set(func() { export.held = false })
	second := startDeviceWith(t, k, Config{ID: 3, Queues: 1, Depth: 64}, export)
	for i := range done {
		if result := testkit.Receive(t, "the result", done[i]); result != 4096 {
			t.Errorf("request %d: result %d", i, result)
		}
	}
	for i := range 8 {
		if export.content[4096*i] != byte(i+1) {
			t.Errorf("block %d has %d", i, export.content[4096*i])
		}
	}
	if s := second.Status(); !s.Recovered || s.Queues != 2 || s.Depth != 8 || !s.CanRecover {
		t.Errorf("status %+v", s)
	}
}

func TestAServerThatLeavesAnswersWhatItHasBegun(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	d := startDeviceWith(t, k, Config{ID: 3}, export)
	export.set(func() { export.held = true })
	done := k.devices[3].submit(0, &fakeRequest{sectors: 8, data: make([]byte, 4096)})
	testkit.Eventually(t, "the disk has the request", func() bool {
		return len(export.operations()) > 0
	})
	left := make(chan error, 1)
	go func() { left <- d.Leave(context.Background()) }()
	testkit.Eventually(t, "the queue drains", func() bool {
		draining := false
		_ = d.queues[0].thread.Run(func() error {
			draining = d.queues[0].draining
			return nil
		})
		return draining
	})
	late := k.devices[3].submit(0, &fakeRequest{operation: opFlush}) // for the next server
	export.set(func() { export.held = false })
	if result := testkit.Receive(t, "the result", done); result != 4096 {
		t.Errorf("result %d", result)
	}
	if err := testkit.Receive(t, "the end", left); err != nil {
		t.Error(err)
	}
	select {
	case result := <-late:
		t.Errorf("a request that came late got %d", result)
	default:
	}
	startDeviceWith(t, k, Config{ID: 3}, export)
	if result := testkit.Receive(t, "the result", late); result != 0 {
		t.Errorf("result %d", result)
	}
}

// kill makes the kernel notice, a moment later, that the server was killed.
func (k *fakeKernel) kill(t *testing.T, d *Device) {
	for _, q := range d.queues {
		_ = q.thread.Run(q.close)
		_ = q.thread.Stop()
	}
	d.queues = nil
	k.mu.Lock()
	defer k.mu.Unlock()
	k.living = map[int32]bool{}
	device := k.devices[3]
	device.info.state = stateLive
	t.Cleanup(func() { d.ended = true })
	go func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		device.isOpen, device.info.state = false, stateQuiesced
	}()
}

func TestAServerWaitsUntilTheKernelHasNoticedADeath(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	k.kill(t, startDeviceWith(t, k, Config{ID: 3}, export))
	if s := startDeviceWith(t, k, Config{ID: 3}, export).Status(); !s.Recovered {
		t.Errorf("status %+v", s)
	}
	if result := k.do(t, &fakeRequest{operation: opFlush}); result != 0 {
		t.Errorf("result %d", result)
	}
}

func TestADeviceHasOneServer(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	startDeviceWith(t, k, Config{ID: 3}, export)
	_, err := startWith(t.Context(), k, Config{ID: 3}, newMemoryExport(1<<20))
	if !errors.Is(err, status.InUse) {
		t.Errorf("a second server: %v", err)
	}
	if err := remove(t.Context(), k, 3, true); !errors.Is(err, status.InUse) {
		t.Errorf("removing a device that is served: %v", err)
	}
	if result := k.do(t, &fakeRequest{operation: opFlush}); result != 0 {
		t.Errorf("result %d", result)
	}
}

func TestADeviceIsTakenOverOnlyWithWhatItPromises(t *testing.T) {
	for name, c := range map[string]struct {
		change func(k *fakeKernel, e *memoryExport)
		config Config
		want   error
	}{
		"smaller disk": {func(_ *fakeKernel, e *memoryExport) { e.info.Size -= 4096 }, Config{},
			status.BadConfig},
		"smaller buffers": {func(_ *fakeKernel, e *memoryExport) {
			e.info.LargestAligned, e.info.LargestAny = 8192, 4096
		}, Config{}, status.BadConfig},
		"read-only": {func(*fakeKernel, *memoryExport) {}, Config{ReadOnly: true}, status.BadConfig},
		"another program's": {func(k *fakeKernel, _ *memoryExport) {
			k.devices[3].info.features &^= featureReissue
		}, Config{}, status.AlreadyExist},
		"broken recovery": {func(k *fakeKernel, _ *memoryExport) {
			k.errors[startRecovery] = int(syscall.EINVAL)
		}, Config{}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			k, export := newFakeKernel(), newMemoryExport(1<<20)
			if err := startDeviceWith(t, k, Config{ID: 3}, export).Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.change(k, export)
			c.config.ID = 3
			if _, err := startWith(t.Context(), k, c.config, export); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if k.devices[3] == nil || k.devices[3].isOpen || export.open != 0 {
				t.Error("the device has gone, or is open")
			}
		})
	}
}

func TestADeviceGrowsIfTheKernelCan(t *testing.T) {
	for _, can := range []bool{false, true} {
		k, export := newFakeKernel(), newMemoryExport(1<<20)
		if can {
			k.features |= featureUpdateSize
		}
		d := startDeviceWith(t, k, Config{ID: 3}, export)
		// The kernel tells what it can with a device that was asked for it.
		k.devices[3].info.features |= k.features & featureUpdateSize
		if err := d.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		export.content = make([]byte, 2<<20)
		export.info.Size = 2 << 20
		d = startDeviceWith(t, k, Config{ID: 3}, export)
		want := uint64(1 << 20)
		if can {
			want = 2 << 20
		}
		if s := d.Status(); s.Size != want {
			t.Errorf("can %v: size %d", can, s.Size)
		}
		r := &fakeRequest{start: 3000, sectors: 8, data: make([]byte, 4096)}
		if isOK := k.do(t, r) == 4096; isOK != can {
			t.Errorf("can %v: reading the new part: %v", can, isOK)
		}
	}
}

func TestADeviceIsRemovedUnlessItIsInUse(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	d := startDeviceWith(t, k, Config{ID: 3}, export)
	k.inUse = true
	if err := d.Remove(t.Context(), false); !errors.Is(err, status.InUse) {
		t.Errorf("removing a device in use: %v", err)
	}
	if result := k.do(t, &fakeRequest{operation: opFlush}); result != 0 {
		t.Errorf("afterwards: result %d", result)
	}
	k.inUse = false
	if err := d.Remove(t.Context(), false); err != nil {
		t.Error(err)
	}
	if len(k.devices) > 0 || export.open != 0 || k.released != 1 || k.closed != 1 {
		t.Errorf("%d devices, %d disks, released %d times, closed %d times", len(k.devices),
			export.open, k.released, k.closed)
	}

	d = startDeviceWith(t, k, Config{ID: 3}, export)
	k.inUse = true
	if err := d.Remove(t.Context(), true); err != nil || len(k.devices) > 0 {
		t.Errorf("by force: %v, %d devices", err, len(k.devices))
	}
}

func TestADeviceWithoutServerIsRemoved(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	export.held = true
	d := startDeviceWith(t, k, Config{ID: 3}, export)
	done := k.devices[3].submit(0, &fakeRequest{operation: opFlush})
	if err := d.Leave(cancelled()); err != nil {
		t.Fatal(err)
	}
	k.inUse = true
	if err := remove(t.Context(), k, 3, false); !errors.Is(err, status.InUse) {
		t.Errorf("a device in use: %v", err)
	}
	if err := remove(t.Context(), k, 3, true); err != nil || len(k.devices) > 0 {
		t.Errorf("by force: %v, %d devices", err, len(k.devices))
	}
	if result := testkit.Receive(t, "the result", done); result != -int32(syscall.EIO) {
		t.Errorf("result %d", result)
	}
	if err := remove(t.Context(), k, 3, true); !errors.Is(err, status.NotFound) {
		t.Errorf("once more: %v", err)
	}
}

func TestADeviceThatSomebodyRemovesEnds(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	d := startDeviceWith(t, k, Config{ID: 3, Queues: 1}, export)
	if err := k.control(t.Context(), stopDevice, control{id: 3}); err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, "the end", d.Done())
	if err := d.Err(); !errors.Is(err, status.Shutdown) {
		t.Errorf("error %v", err)
	}
}

func TestWhatFailsAtTheStartLeavesNoDevice(t *testing.T) {
	for o, want := range map[operation]error{
		addDevice: syscall.EIO, setParameters: syscall.EIO, startDevice: syscall.EIO,
	} {
		k, export := newFakeKernel(), newMemoryExport(1<<20)
		k.errors[o] = int(syscall.EIO)
		_, err := startWith(t.Context(), k, Config{ID: 3}, export)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), o.String()) ||
			len(k.devices) > 0 || export.open != 0 || k.closed != 1 {
			t.Errorf("%v: error %v, %d devices, %d disks", o, err, len(k.devices), export.open)
		}
	}
	for want, features := range map[error]feature{
		status.NotSupported: 0x1fe &^ featureGetData, status.ErrClosed: 0,
	} {
		k := newFakeKernel()
		k.features = features
		_, err := startWith(t.Context(), k, Config{ID: 3}, newMemoryExport(1<<20))
		if !errors.Is(err, status.NotSupported) || len(k.devices) > 0 {
			t.Errorf("features %#x: %v, want %v", features, err, want)
		}
	}
	for _, c := range []Config{
		{ID: -2}, {ID: maxID + 1}, {Queues: MaxQueues + 1}, {Depth: MaxDepth + 1}, {Queues: -1},
		{BlockSize: 256}, {BlockSize: 8192}, {BlockSize: 1000},
	} {
		k := newFakeKernel()
		if _, err := startWith(t.Context(), k, c, newMemoryExport(1<<20)); !errors.Is(err,
			status.InvalidValue) || len(k.calls) > 0 {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestTheKernelChoosesWhatIsLeftToIt(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	k.processors = 2
	d := startDeviceWith(t, k, Config{ID: AnyID, Queues: 4}, export)
	if s := d.Status(); s.ID != 5 || s.Path != "/dev/ublkb5" || s.Queues != 2 ||
		s.BlockSize != 4096 || s.Size != 1<<20 {
		t.Errorf("status %+v", s)
	}
}

func TestADeviceWithoutPrivilegesNeedsItsPath(t *testing.T) {
	k, export := newFakeKernel(), newMemoryExport(1<<20)
	d := startDeviceWith(t, k, Config{ID: 3, Unprivileged: true}, export)
	if s := d.Status(); s.CanRecover {
		t.Error("the device outlives its server")
	}
	if err := d.Remove(t.Context(), false); err != nil {
		t.Error(err)
	}
	if len(k.devices) > 0 {
		t.Error("the device is still there")
	}
	for i, o := range k.calls {
		if k.paths[i] != (o != addDevice) && o != getInfo {
			t.Errorf("%v: path %v", o, k.paths[i])
		}
	}
}

func TestProbeSaysWhatTheKernelCan(t *testing.T) {
	k := newFakeKernel()
	if f, err := probe(t.Context(), k); err != nil || f != (Features{CanRecover: true}) {
		t.Errorf("%+v, error %v", f, err)
	}
	k.features |= featureUpdateSize
	if f, err := probe(t.Context(), k); err != nil || !f.CanGrow {
		t.Errorf("%+v, error %v", f, err)
	}
	k.features &^= featureGetData
	if _, err := probe(t.Context(), k); !errors.Is(err, status.NotSupported) {
		t.Errorf("error %v", err)
	}
	k.errors[getFeatures] = int(syscall.EOPNOTSUPP)
	if _, err := probe(t.Context(), k); !errors.Is(err, status.NotSupported) ||
		!strings.Contains(err.Error(), "6.12") {
		t.Errorf("error %v", err)
	}
}
