// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/bucket"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestADrainedSessionDoesNotStart(t *testing.T) {
	s := &session{ctx: context.Background()}
	s.drain(context.Background())
	if err := s.StartStorage(context.Background()); !errors.Is(err, status.Shutdown) {
		t.Errorf("start storage: %v", err)
	}
}

func TestAClientSeesOneOfFourCodesWhenItsSessionEnds(t *testing.T) {
	for reason, want := range map[error]status.Code{
		nil:                                      status.ConnectionReset,
		status.Errorf(status.TimeOut, "made up"): status.TimeOut,
		status.Errorf(status.Shutdown, "made up"):               status.Shutdown,
		status.Errorf(status.NotConnected, "made up"):           status.ConnectionReset,
		status.Errorf(status.IOFailed, "made up"):               status.ConnectionReset,
		status.Errorf(status.NotPermitted, "made up"):           status.ConnectionReset,
		errors.New("an error of another package"):               status.ConnectionReset,
		status.Errorf(status.Unexpected, "breaks the protocol"): status.ConnectionReset,
		status.Errorf(status.InUse, "a busy device"):            status.ConnectionReset,
		fmt.Errorf("target: %w", &controlmsg.Error{Code: status.InUse,
			Text: "preempted by another owner"}): status.InUse,
	} {
		if got := endCode(reason); got != want {
			t.Errorf("requests fail with %v because of %v, want %v", got, reason, want)
		}
	}
}

// reachableRegion is memory that a device reaches until err is nil.
type reachableRegion struct {
	rdma.MemoryRegion
	err error
}

func (r *reachableRegion) Deregister() error { return r.err }

func TestMemoryThatADeviceMayReachStaysMapped(t *testing.T) {
	region, err := memory.Alloc("client", 4096)
	if err != nil {
		t.Fatal(err)
	}
	registered := &reachableRegion{err: status.Errorf(status.Driver, "made up")}
	s := &session{channel: &channelCommon{},
		sessionMemory: sessionMemory{region: region, registered: registered, exported: 4096}}
	s.channel.exported.Store(4096)
	if err := s.releaseMemory(t.Context()); !errors.Is(err, status.Driver) || s.region == nil ||
		s.channel.exported.Load() != 4096 {
		t.Errorf("memory that could not be deregistered is unmapped (%v)", err)
	}
	registered.err = nil
	if err := s.releaseMemory(t.Context()); err != nil || s.region != nil ||
		s.channel.exported.Load() != 0 {
		t.Errorf("memory that no device reaches stays mapped (%v)", err)
	}
}

func TestADeviceThatHangsDelaysOnlyThoseWhoNeedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Int32
		answers := make(chan struct{})
		devices := newDMADeviceSet(nil)
		devices.open = func(address string) (dma.Device, error) {
			opened.Add(1)
			if address == "stuck" {
				<-answers
			}
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 2 {
			if _, err := devices.at(ctx, "stuck"); !errors.Is(err, status.TimeOut) {
				t.Errorf("a device that hangs: %v", err)
			}
		}
		if _, err := devices.at(t.Context(), "well"); err != nil {
			t.Errorf("another device: %v", err)
		}
		close(answers)
		if _, err := devices.at(t.Context(), "stuck"); err != nil {
			t.Errorf("the device after it has answered: %v", err)
		}
		if n := opened.Load(); n != 2 {
			t.Errorf("opened %d devices, want each once", n)
		}
	})
}

// removable is a DMA device of a test that can be lost.
type removable struct {
	dma.Device
	lost  chan struct{}
	inUse atomic.Bool
	ends  atomic.Int32 // calls of Close that have succeeded
}

func (r *removable) Close() error {
	if r.inUse.Load() {
		return status.InUse
	}
	r.ends.Add(1)
	return nil
}

func TestALostDeviceIsOpenedAnewAndClosedWhenNobodyUsesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*removable
		devices := newDeviceSet(func(d dma.Device) <-chan struct{} { return d.(*removable).lost },
			func(string) (dma.Device, error) {
				all = append(all, &removable{lost: make(chan struct{})})
				return all[len(all)-1], nil
			})
		at := func() *removable {
			t.Helper()
			synctest.Wait()
			device, err := devices.at(t.Context(), "any")
			if err != nil {
				t.Fatal(err)
			}
			return device.(*removable)
		}
		first := at()
		first.inUse.Store(true)
		if at() != first {
			t.Error("the device is opened again although it is well")
		}
		close(first.lost)
		second := at()
		if second == first {
			t.Error("a lost device is used again")
		}
		time.Sleep(time.Minute)
		first.inUse.Store(false)
		time.Sleep(closePause)
		synctest.Wait()
		if n := first.ends.Load(); n != 1 {
			t.Errorf("the lost device that nobody uses is closed %d times", n)
		}
		second.inUse.Store(true)
		close(second.lost)
		third := at()
		second.inUse.Store(false)
		if err := devices.close(); err != nil || second.ends.Load() != 1 || third.ends.Load() != 1 {
			t.Errorf("the end of the set: %v, %d and %d devices closed", err, second.ends.Load(),
				third.ends.Load())
		}
	})
}

// forgetful is a DMA device that registers memory once, and at first does not deregister it.
type forgetful struct {
	dma.Device
	registered int
	stuck      bool
}

func (f *forgetful) Name() string { return "forgetful" }

func (f *forgetful) Register(*memory.Region, memory.Access) (dma.Registration, error) {
	if f.registered++; f.registered > 1 {
		return nil, status.NotSupported
	}
	return f, nil
}

func (f *forgetful) Deregister() error {
	if f.stuck {
		return status.Driver
	}
	return nil
}

func TestBounceMemoryThatCannotBeReleasedIsReleasedLater(t *testing.T) {
	c := &channelCommon{relay: &relayCommon{}}
	c.relay.maxBounced.Store(1 << 20)
	device := &forgetful{stuck: true}
	b, err := c.newBounceMemory(device,
		&controlmsg.ConfigureDataPath{QueueCount: 1, Depth: 1, BufferSize: 4096},
		&Limits{MaxBounceMemory: 1 << 20}, memory.Wrap(make([]byte, 4096)), memory.PCIRead)
	if b == nil || !errors.Is(err, status.NotSupported) || c.bounced.Load() != 4096 {
		t.Fatalf("%v with %d bytes charged, error %v", b, c.bounced.Load(), err)
	}
	device.stuck = false
	if err := b.release(); err != nil || c.bounced.Load() != 0 || c.relay.bounced.Load() != 0 {
		t.Errorf("%d bytes stay charged, error %v", c.bounced.Load(), err)
	}
}

func TestADeviceInDoubtIsOpenedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		devices := newDeviceSet(func(dma.Device) <-chan struct{} { return nil },
			func(string) (dma.Device, error) {
				opened++
				return &removable{}, nil
			})
		expect := func(want int, why string) {
			t.Helper()
			if _, err := devices.at(t.Context(), "any"); err != nil || opened != want {
				t.Errorf("%s: opened %d times, want %d, error %v", why, opened, want, err)
			}
		}
		expect(1, "the first use")
		time.Sleep(doubtAge)
		devices.doubt("any", status.Driver)
		expect(1, "an error of a young device, which a peer may have caused")
		time.Sleep(time.Nanosecond)
		devices.doubt("any", status.InvalidValue)
		expect(1, "an error of the caller")
		gone := devices.gone("any")
		devices.doubt("any", status.Driver)
		<-gone
		<-devices.gone("any")
		expect(2, "an error of the device")
		if err := devices.close(); err != nil {
			t.Error(err)
		}
	})
}

func TestADeviceThatCouldNotBeOpenedIsTriedAgain(t *testing.T) {
	devices := newDMADeviceSet(nil)
	for range 2 {
		if _, err := devices.at(t.Context(), "any"); !errors.Is(err, status.NotSupported) {
			t.Errorf("without a provider: %v", err)
		}
	}
	devices.open = func(string) (dma.Device, error) { return nil, nil }
	if _, err := devices.at(t.Context(), "any"); err != nil {
		t.Errorf("with one: %v", err)
	}
}

func TestARejectedExportUsesNothingOfTheLimit(t *testing.T) {
	s := &session{channel: &channelCommon{},
		settings:      &ChannelConfig{Limits: Limits{MaxExport: 100}},
		sessionMemory: sessionMemory{paths: []MemoryPath{PathMapped}}}
	s.channel.exported.Store(60)
	m := &controlmsg.ConfigureDataPath{Export: controlmsg.Export{Length: 50}}
	if err := s.importMemory(t.Context(), m); !errors.Is(err, status.NoMemory) {
		t.Errorf("import: %v", err)
	}
	if n := s.channel.exported.Load(); n != 60 {
		t.Errorf("%d bytes count as exported, want those of the other sessions", n)
	}
}

// importing is a connection to a client that has exported memory with all rights.
type importing struct {
	comch.Connection
	region *memory.Region
}

func (c importing) ImportMemory([]byte) (*memory.Region, memory.Access, error) {
	return c.region, memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite, nil
}

func TestAnExportGrantsTheTargetNoMoreThanTheRelay(t *testing.T) {
	for _, access := range []memory.Access{
		memory.RemoteWrite, memory.RemoteWrite | memory.PCIRead,
		memory.RemoteRead, memory.RemoteRead | memory.PCIWrite,
	} {
		s := &session{channel: &channelCommon{},
			sessionMemory: sessionMemory{paths: []MemoryPath{PathMapped}},
			connection:    importing{region: memory.Wrap(make([]byte, 50))},
			settings:      &ChannelConfig{Limits: Limits{MaxExport: 100}}}
		m := &controlmsg.ConfigureDataPath{Export: controlmsg.Export{Length: 50, Access: access}}
		if err := s.importMemory(t.Context(), m); !errors.Is(err, status.InvalidValue) {
			t.Errorf("an export with access %#x: %v", access, err)
		}
	}
}

func TestASessionBeginsWhenTheFormerIsReleased(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that it does not wait
	clients := epoch.NewRegistry(epoch.Config{Restart: true})
	former := epoch.NewSession(func(error) {})
	if err := clients.Supersede(ctx, epoch.Instance{}, 1, former); err != nil {
		t.Fatal(err)
	}
	s := &session{channel: &channelCommon{clients: clients},
		epoch:      epoch.NewSession(func(error) {}),
		connection: importing{region: memory.Wrap(make([]byte, 50))},
		announced:  &controlmsg.OpenVolumeReply{MaxQueues: 1, MaxDepth: 1, MaxBufferSize: 512},
		settings:   &ChannelConfig{Limits: Limits{MaxExport: 100, MaxOutstanding: 1}}}
	_, err := s.ConfigureDataPath(ctx, &controlmsg.ConfigureDataPath{QueueCount: 1, Depth: 1,
		BufferSize: 512, Epoch: 2, Export: controlmsg.Export{Length: 50}})
	if !errors.Is(err, status.Again) || controlmsg.RetryAfter(err) != formerPause {
		t.Errorf("a session begins although the former is not released: %v", err)
	}
}

func TestASessionMayMakeTheRelayConnectAFewTimesInARow(t *testing.T) {
	s := &session{channel: &channelCommon{dials: bucket.New(0)}, settings: &ChannelConfig{},
		dials: bucket.New(time.Hour)}
	for range sessionDialBurst {
		if err := s.awaitDial(t.Context(), netip.AddrPort{}); err != nil {
			t.Error(err)
		}
	}
	if err := s.awaitDial(t.Context(), netip.AddrPort{}); !errors.Is(err, status.Again) {
		t.Errorf("connects once more: %v", err)
	}
}

// TestASessionThatOpensDuringAReloadHasTheNewLimits lets a reload change the limits at any moment
// of the session's beginning.
func TestASessionThatOpensDuringAReloadHasTheNewLimits(t *testing.T) {
	limited := func(iops uint32) *ChannelConfig {
		return &ChannelConfig{QoS: QoS{Session: datapath.RateLimits{IOPS: iops,
			Burst: time.Second}}}
	}
	c := &channel{sessions: make(map[uint64]*session)}
	for round := range uint32(2000) {
		former, next := limited(1+2*round), limited(2+2*round)
		c.settings.Store(former)
		s := &session{}
		var both sync.WaitGroup
		both.Go(func() { c.add(s) })
		both.Go(func() {
			c.settings.Store(next)
			c.limitSessions()
		})
		both.Wait()
		if got := s.throttle.Limits(); got != next.QoS.Session {
			t.Fatalf("round %d: the limits are %+v, want %+v", round, got, next.QoS.Session)
		}
		delete(c.sessions, s.id)
	}
}

// The ends of a target's connections arrive in any order. The farewell on one of them says why.
func TestATargetThatLeavesCanSayWhy(t *testing.T) {
	reset := status.Errorf(status.ConnectionReset, "the peer closed the connection")
	for name, test := range map[string]struct {
		leaves   bool
		farewell error
		want     status.Code
	}{
		"with a farewell":    {true, status.Errorf(status.Shutdown, "draining"), status.Shutdown},
		"without a farewell": {true, nil, status.ConnectionReset},
		"unexpectedly":       {false, nil, status.ConnectionReset},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &session{log: zap.NewNop()}
				s.ctx, s.cancel = context.WithCancelCause(t.Context())
				s.targetLeaves.Store(test.leaves)
				go s.endForLane(0, reset)
				synctest.Wait()
				if ended := s.ctx.Err() != nil; ended == test.leaves {
					t.Errorf("a lane's failure has ended the session: %v", ended)
				}
				if test.farewell != nil {
					s.cancel(test.farewell)
				}
				<-s.ctx.Done()
				if got := status.CodeOf(context.Cause(s.ctx)); got != test.want {
					t.Errorf("the session ended with %v, want %v", got, test.want)
				}
			})
		})
	}
}
