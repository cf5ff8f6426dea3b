// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package rdma tests the provider of RDMA over libdoca, on its emulation.
package rdma_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	rdmadoca "github.com/zc-relay/zc-relay/pkg/rdma/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

// emulate makes the emulation of libdoca answer as a release, and fails the test for each misuse
// and each object that is left.
func emulate(t *testing.T, release libdoca.Release) *doca.Loader {
	t.Helper()
	return emulateDevices(t, release, nil)
}

func emulateDevices(t *testing.T, release libdoca.Release, devices []libdoca.Device) *doca.Loader {
	t.Helper()
	err := libdoca.Configure(libdoca.Config{Release: release, Directory: t.TempDir(),
		Devices: devices,
		Report:  func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := libdoca.Objects(); len(left) > 0 {
			t.Errorf("objects are left: %v", left)
		}
	})
	return doca.Resolved(libdoca.Lookup)
}

// missing is what hardware that libdoca drives cannot promise.
var missing = map[rdmatest.Feature]string{
	rdmatest.ReceiverNotReady:   "doca_rdma retries a Send until there is a receive",
	rdmatest.AnswersNeedPolling: "a context serves its peers while nobody makes progress",
	rdmatest.SendsOutliveClose:  "the tasks of a context end with it",
	rdmatest.WritesNeedPolling:  "a context serves its peers while nobody makes progress",
}

func TestConformance(t *testing.T) {
	for name, release := range map[string]libdoca.Release{
		"2.10": libdoca.Release2_10, "3.3": libdoca.Release3_3,
	} {
		t.Run(name, func(t *testing.T) {
			if release < libdoca.Release3_0 {
				testkit.OnlyComplete(t, "in 3.3, everything is the same, and threads sleep")
			}
			lacks := missing
			if release < libdoca.Release3_0 {
				lacks = map[rdmatest.Feature]string{
					rdmatest.Descriptor: "an armed engine stalls outbound work before 3.0",
				}
				for feature, reason := range missing {
					lacks[feature] = reason
				}
			}
			rdmatest.Run(t, rdmatest.Config{
				Provider: rdmadoca.New(rdmadoca.Options{Loader: emulate(t, release),
					Device: "03:00.0"}),
				Address: loopback, Missing: lacks,
			})
		})
	}
}

func hooked(t *testing.T) rdma.Provider {
	t.Helper()
	injector, _ := faulttest.New(t, "rdma:any:trace")
	return hook.Wrap(rdmadoca.New(rdmadoca.Options{Loader: emulate(t, libdoca.Release3_3),
		Device: "03:00.0"}), hook.Config{Injector: injector})
}

func TestAHookedProviderConforms(t *testing.T) {
	testkit.OnlyComplete(t, "TestConformance, and hooks over iWARP")
	rdmatest.Run(t, rdmatest.Config{Provider: hooked(t), Address: loopback, Missing: missing})
}

// TestAHookedProviderConnectsByDetails writes to memory of the peer, as programs written for DOCA
// do.
func TestAHookedProviderConnectsByDetails(t *testing.T) {
	opened, err := hooked(t).Open(loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, opened.Close)
	device, can := opened.(rdma.DetailsDevice)
	if !can {
		t.Fatal("the device cannot connect by details")
	}
	const size = 4096
	type side struct {
		domain     rdma.ProtectionDomain
		queue      rdma.CompletionQueue
		memory     *memory.Region
		registered rdma.MemoryRegion
		end        rdma.PreparedConnection
		connection rdma.Connection
	}
	var sides [2]side
	for i := range sides {
		s := &sides[i]
		var errs [5]error
		s.domain, errs[0] = device.NewProtectionDomain()
		s.queue, errs[1] = device.NewCompletionQueue(8)
		s.memory, errs[2] = memory.Alloc("details", size)
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		s.registered, errs[3] = s.domain.Register(s.memory, memory.LocalWrite|memory.RemoteWrite)
		s.end, errs[4] = device.Prepare(rdma.ConnectionConfig{Domain: s.domain, Queue: s.queue,
			SendRequests: 4, ReceiveRequests: 4})
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range sides {
		if sides[i].connection, err = sides[i].end.Connect(sides[1-i].end.Details()); err != nil {
			t.Fatal(err)
		}
	}
	importing, can := sides[0].domain.(rdma.ImportingDomain)
	if !can {
		t.Fatal("the domain cannot import memory")
	}
	exported, is := sides[1].registered.(rdma.ExportedRegion)
	if !is {
		t.Fatal("the region has no export")
	}
	imported, err := importing.Import(exported.Export())
	if err != nil {
		t.Fatal(err)
	}
	copy(sides[0].memory.Bytes(), "by details")
	remote := imported.RemoteMemory()
	if err := sides[0].connection.PostSend([]rdma.SendRequest{{Opcode: rdma.OpWrite,
		Local: rdma.Segment{Key: sides[0].registered.LocalKey(), Length: size,
			Address: sides[0].registered.Base()},
		RemoteKey: remote.Key, RemoteAddress: remote.Base}}); err != nil {
		t.Fatal(err)
	}
	sides[0].connection.Flush()
	poll := func(what string, done func(s *side, c rdma.Completion) bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Microsecond) {
			for i := range sides {
				var completions [8]rdma.Completion
				for _, c := range completions[:sides[i].queue.Poll(completions[:])] {
					if done(&sides[i], c) {
						return
					}
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s did not come", what)
			}
		}
	}
	poll("the completion", func(_ *side, c rdma.Completion) bool {
		if c.Status != rdma.StatusSuccess {
			t.Fatalf("the write ended as %+v", c)
		}
		return c.Opcode == rdma.OpWrite
	})
	if got := string(sides[1].memory.Bytes()[:10]); got != "by details" {
		t.Errorf("the peer's memory has %q", got)
	}
	ended := 0
	for i := range sides {
		sides[i].connection.Close()
	}
	poll("the end", func(_ *side, c rdma.Completion) bool {
		if c.Opcode == rdma.OpDisconnected {
			ended++
		}
		return ended == len(sides)
	})
	release(t, imported.Close)
	for i := range sides {
		s := &sides[i]
		for _, close := range []func() error{s.registered.Deregister, s.memory.Close,
			s.queue.Close, s.domain.Close} {
			release(t, close)
		}
	}
}

func TestANewcomerIsServedWhileSilentClientsHoldTheListener(t *testing.T) {
	const silent = 1000
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	provider := rdmadoca.New(rdmadoca.Options{Loader: emulate(t, libdoca.Release3_3),
		Device: "03:00.0"})
	device, err := provider.Open(loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, device.Close)
	listener, err := device.Listen(ctx, netip.AddrPortFrom(loopback, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, listener.Close)
	for range silent {
		conn, err := net.Dial("tcp", listener.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	domain, err := device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, domain.Close)
	queue, err := device.NewCompletionQueue(8)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, queue.Close)
	result := make(chan error, 1)
	go func() {
		_, err := device.Connect(ctx, listener.Address(), rdma.ConnectionConfig{Domain: domain,
			Queue: queue, SendRequests: 1, ReceiveRequests: 1, PrivateData: []byte("newcomer")})
		result <- err
	}()
	request, err := listener.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(request.PrivateData()); got != "newcomer" {
		t.Errorf("the request is of %q", got)
	}
	if err := request.Reject([]byte("served")); err != nil {
		t.Error(err)
	}
	var rejected *rdma.RejectedError
	if err := <-result; !errors.As(err, &rejected) || string(rejected.Reason) != "served" {
		t.Errorf("the newcomer is told %v", err)
	}
}

func release(t *testing.T, release func() error) {
	t.Helper()
	if err := release(); err != nil {
		t.Error(err)
	}
}

// TestAnAddressHasAGID lets a device reach itself, whose address is one entry of its GID table.
func TestAnAddressHasAGID(t *testing.T) {
	for name, c := range map[string]struct {
		options rdmadoca.Options
		opens   error
		reaches bool
	}{
		"automatic":        {rdmadoca.Options{}, nil, true},
		"the right one":    {rdmadoca.Options{GIDIndex: new(3)}, nil, true},
		"another one":      {rdmadoca.Options{GIDIndex: new(0)}, nil, false},
		"with all else":    {rdmadoca.Options{PathMTU: 4096, RNRRetryCount: 3}, nil, true},
		"no MTU":           {rdmadoca.Options{PathMTU: 9000}, status.InvalidValue, false},
		"no number":        {rdmadoca.Options{RNRRetryCount: 8}, status.InvalidValue, false},
		"a negative entry": {rdmadoca.Options{GIDIndex: new(-1)}, status.InvalidValue, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Loader = emulateDevices(t, libdoca.Release3_3, []libdoca.Device{
				{PCI: "03:00.0", IPv4: loopback, GIDIndex: 3}})
			device, err := rdmadoca.New(c.options).Open(loopback)
			if !errors.Is(err, c.opens) {
				t.Fatalf("open: %v", err)
			}
			if err != nil {
				return
			}
			domain := must(t, device.NewProtectionDomain)
			region := must(t, func() (*memory.Region, error) { return memory.Alloc("gid", 64) })
			registered := must(t, func() (rdma.MemoryRegion, error) {
				return domain.Register(region, 0)
			})
			_, err = rdma.TryLoopback(testkit.Context(t), device, loopback, domain, registered)
			if (err == nil) != c.reaches {
				t.Errorf("the device reaches itself: %v", err)
			}
			if err != nil && (!strings.Contains(err.Error(), "GID 0") ||
				!strings.Contains(err.Error(), "rdma.gid_index")) {
				t.Errorf("the error does not name the GID: %v", err)
			}
			for _, release := range []func() error{registered.Deregister, region.Close,
				domain.Close, device.Close} {
				if err := release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func must[T any](t *testing.T, make func() (T, error)) T {
	t.Helper()
	made, err := make()
	if err != nil {
		t.Fatal(err)
	}
	return made
}
