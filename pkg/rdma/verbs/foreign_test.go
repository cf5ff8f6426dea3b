// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// library stands for another library that uses an RDMA device, such as libdoca: it has opened the
// device for itself, and registered memory in a protection domain of its own.
type library struct {
	context *ibv.Context
	domain  *ibv.ProtectionDomain
	mr      *ibv.MemoryRegion
	device  memory.Device
	bytes   []byte
	region  *memory.Region // what it gives to others
}

// The library is the handle of its region.
func (l *library) Device() memory.Device     { return l.device }
func (l *library) ProtectionDomain() uintptr { return l.domain.Address() }
func (l *library) Key() uint32               { return l.mr.RemoteKey() }

// openLibrary opens the device as another library does. close must follow.
func openLibrary(t *testing.T, name string) *library {
	t.Helper()
	must(t, ibv.Load())
	l := &library{device: memory.Device{RDMA: name}}
	var err error
	l.context, err = ibv.Open(name)
	must(t, err)
	l.domain, err = l.context.NewProtectionDomain()
	must(t, err)
	pages, err := memory.Alloc("foreign", linkMemory)
	must(t, err)
	t.Cleanup(func() { must(t, pages.Close()) })
	l.bytes = pages.Bytes()
	l.mr, err = l.domain.Register(l.bytes, ibv.LocalWrite|ibv.RemoteRead|ibv.RemoteWrite)
	must(t, err)
	l.region = memory.NewOpaque(l, l.mr.Address(), linkMemory, nil)
	return l
}

// close fails if anything in the library's protection domain is left.
func (l *library) close(t *testing.T) {
	t.Helper()
	must(t, l.region.Close())
	must(t, l.mr.Deregister())
	must(t, l.domain.Close())
	must(t, l.context.Close())
}

// openDevice opens a device until the end of the test.
func openDevice(t *testing.T, name string, address netip.Addr) rdma.Device {
	t.Helper()
	provider, err := verbs.New(verbs.Options{Device: name})
	must(t, err)
	device, err := provider.Open(address)
	must(t, err)
	t.Cleanup(func() { must(t, device.Close()) })
	return device
}

func TestForeignMemoryIsReachedByItsKey(t *testing.T) {
	for name, address := range testDevices(t) {
		foreign := openLibrary(t, name)
		t.Cleanup(func() { foreign.close(t) })
		device := openDevice(t, name, address)
		domain, err := rdma.NewDomainFor(device, foreign.region)
		must(t, err)
		registered, err := domain.Register(foreign.region, memory.LocalWrite|memory.RemoteRead|
			memory.RemoteWrite)
		must(t, err)
		if registered.LocalKey() != foreign.Key() || registered.RemoteKey() != foreign.Key() ||
			registered.Base() != uint64(uintptr(unsafe.Pointer(&foreign.bytes[0]))) ||
			registered.Len() != linkMemory {
			t.Errorf("registered as keys %#x and %#x, %d bytes at %#x", registered.LocalKey(),
				registered.RemoteKey(), registered.Len(), registered.Base())
		}
		l := &link{t: t, device: device}
		l.x, l.y = l.newSideIn(domain), l.newSide()
		t.Cleanup(func() { must(t, registered.Deregister()) })
		l.connect(address)

		// The peer writes and reads the foreign memory.
		fill := func(b []byte, seed byte) {
			for i := range b {
				b[i] = byte(i)*7 + seed
			}
		}
		const length = 65536
		move := func(from *side, opcode rdma.Opcode, local rdma.Segment, key uint32, base uint64) {
			t.Helper()
			from.requests[0] = rdma.SendRequest{Opcode: opcode, Silent: true, Local: local,
				RemoteKey: key, RemoteAddress: base}
			from.requests[1] = rdma.SendRequest{Opcode: rdma.OpSend, Local: from.segment(64)}
			to := l.x
			if from == l.x {
				to = l.y
			}
			to.postReceives(t, 1, 64)
			from.post(t, 2)
			l.await(from, 1)
			l.await(to, 1)
		}
		fill(l.y.bytes[:length], 1)
		move(l.y, rdma.OpWrite, l.y.segment(length), registered.RemoteKey(), registered.Base())
		if !bytes.Equal(foreign.bytes[64:length], l.y.bytes[64:length]) {
			t.Errorf("%s: a Write to foreign memory has not arrived", name)
		}
		fill(foreign.bytes[:length], 2)
		move(l.y, rdma.OpRead, l.y.segment(length), registered.RemoteKey(), registered.Base())
		if !bytes.Equal(foreign.bytes[64:length], l.y.bytes[64:length]) {
			t.Errorf("%s: a Read of foreign memory returned something else", name)
		}
		// This side sends from it, even what is short enough to be inlined.
		for _, length := range []int{32, length} {
			fill(foreign.bytes[:length], byte(length>>4)+3)
			move(l.x, rdma.OpWrite, rdma.Segment{Key: registered.LocalKey(),
				Address: registered.Base(), Length: uint32(length)}, l.y.memory.RemoteKey(),
				l.y.memory.Base()+linkMemory/2)
			if !bytes.Equal(foreign.bytes[:length], l.y.bytes[linkMemory/2:][:length]) {
				t.Errorf("%s: %d bytes of foreign memory have not been sent", name, length)
			}
		}
		if _, err := domain.Register(foreign.region, 0); !errors.Is(err, status.InUse) {
			t.Errorf("%s: registering the region again: %v", name, err)
		}
	}
}

// completionChannels returns how many event descriptors of RDMA devices the process has.
func completionChannels(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, entry := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + entry.Name())
		if strings.Contains(target, "infiniband") {
			n++
		}
	}
	return n
}

func TestOneQueueServesOwnAndForeignDomains(t *testing.T) {
	for name, address := range testDevices(t) {
		own := newLink(t, verbs.Options{Device: name}, address)
		before := completionChannels(t)
		for range 2 { // the second time after the first device has been closed
			foreign := openLibrary(t, name)
			domain, err := rdma.NewDomainFor(own.device, foreign.region)
			must(t, err)
			l := &link{t: t, device: own.device}
			l.x, l.y = l.newSideIn(domain), l.newSide()
			must(t, l.x.queue.Close())
			l.x.queue, l.x.sharesQueue = own.x.queue, true
			l.connect(address)

			// The queue's thread sleeps until either connection has a completion.
			for _, pair := range [][2]*side{{l.x, l.y}, {own.x, own.y}, {l.x, l.y}} {
				pair[0].postReceives(t, 1, 64)
				for !own.x.queue.Arm() {
					if n := own.x.queue.Poll(own.x.completions[:]); n > 0 {
						t.Fatalf("%s: %d completions of nothing", name, n)
					}
				}
				pair[1].send(t, 64)
				poll := []unix.PollFd{{Fd: int32(own.x.queue.Descriptor()), Events: unix.POLLIN}}
				for {
					n, err := unix.Poll(poll, int(testkit.Patience.Milliseconds()))
					if errors.Is(err, unix.EINTR) {
						continue
					}
					if err != nil || n != 1 {
						t.Fatalf("%s: the queue's thread is not woken: %d, %v", name, n, err)
					}
					break
				}
				own.x.queue.Clear()
				l.await(own.x, 1)
				l.await(pair[1], 1)
			}

			// Nothing may be left on the other library's device when the domain has been closed.
			l.x.close(t)
			foreign.close(t)
			l.y.close(t)
			own.x.transfer(t, own.y, rdma.OpWrite, 1, 64)
			own.await(own.x, 1)
		}
		if after := completionChannels(t); after != before {
			t.Errorf("%s: %d descriptors of RDMA devices, before %d", name, after, before)
		}
	}
}

func TestAFailedConnectionReleasesTheForeignDevice(t *testing.T) {
	for name, address := range testDevices(t) {
		foreign := openLibrary(t, name)
		device := openDevice(t, name, address)
		before := completionChannels(t)
		domain, err := rdma.NewDomainFor(device, foreign.region)
		must(t, err)
		queue, err := device.NewCompletionQueue(64)
		must(t, err)
		config := rdma.ConnectionConfig{Domain: domain, Queue: queue, SendRequests: 4,
			ReceiveRequests: 4}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		for range 2 {
			nobody := netip.AddrPortFrom(address, 1)
			if c, err := device.Connect(ctx, nobody, config); err == nil {
				t.Fatalf("%s: connected to nobody: %v", name, c)
			}
		}
		cancel()
		// Nobody polls the queue meanwhile.
		must(t, domain.Close())
		if after := completionChannels(t); after != before {
			t.Errorf("%s: %d descriptors of RDMA devices, before %d", name, after, before)
		}
		foreign.close(t)
		must(t, queue.Close())
	}
}

// plainHandle is the handle of memory that has not been registered for RDMA.
type plainHandle struct{}

func (plainHandle) Device() memory.Device { return memory.Device{} }

// nowhere is foreign memory without a protection domain.
type nowhere struct{ plainHandle }

func (nowhere) ProtectionDomain() uintptr { return 0 }
func (nowhere) Key() uint32               { return 1 }

func TestForeignMemoryElsewhereIsRejected(t *testing.T) {
	devices := testDevices(t)
	for name, address := range devices {
		device := openDevice(t, name, address)
		if c := device.Capabilities(); !c.OpaqueMemory || c.Device.RDMA != name {
			t.Errorf("%s: opaque memory %v, device %v", name, c.OpaqueMemory, c.Device)
		}
		own, err := device.NewProtectionDomain()
		must(t, err)
		foreign := openLibrary(t, name)
		unregistered := memory.NewOpaque(plainHandle{}, 0, 4096, nil)
		for what, region := range map[string]*memory.Region{
			"foreign memory in an own domain": foreign.region, "unregistered memory": unregistered,
		} {
			if _, err := own.Register(region, 0); !errors.Is(err, status.NotSupported) {
				t.Errorf("%s: %s: Register returned %v", name, what, err)
			}
		}
		_, err = rdma.NewDomainFor(device, memory.NewOpaque(nowhere{}, 0, 4096, nil))
		if !errors.Is(err, status.InvalidValue) {
			t.Errorf("%s: a domain at address 0: %v", name, err)
		}
		must(t, own.Close())
		for other, address := range devices {
			if other == name {
				continue
			}
			elsewhere := openDevice(t, other, address)
			for _, known := range []string{"", name} {
				foreign.device.RDMA = known
				_, err := rdma.NewDomainFor(elsewhere, foreign.region)
				if !errors.Is(err, status.NotSupported) || !strings.Contains(err.Error(), name) {
					t.Errorf("memory of %s on device %s: %v", name, other, err)
				}
			}
		}
		foreign.close(t)
	}
}
