package relay

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestADrainedSessionDoesNotStart(t *testing.T) {
	s := &session{ctx: context.Background()}
	s.drain(context.Background())
	if err := s.StartStorage(context.Background()); !errors.Is(err, status.Shutdown) {
		t.Errorf("start storage: %v", err)
	}
}

func TestAClientSeesOneOfThreeCodesWhenItsSessionEnds(t *testing.T) {
	for reason, want := range map[error]status.Code{
		nil:                                      status.ConnectionReset,
		status.Errorf(status.TimeOut, "made up"): status.TimeOut,
		status.Errorf(status.Shutdown, "made up"):               status.Shutdown,
		status.Errorf(status.NotConnected, "made up"):           status.ConnectionReset,
		status.Errorf(status.IOFailed, "made up"):               status.ConnectionReset,
		status.Errorf(status.NotPermitted, "made up"):           status.ConnectionReset,
		errors.New("an error of another package"):               status.ConnectionReset,
		status.Errorf(status.Unexpected, "breaks the protocol"): status.ConnectionReset,
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
	s := &session{channel: &channel{}, region: region, registered: registered, exported: 4096}
	s.channel.exported.Store(4096)
	if err := s.releaseMemory(); !errors.Is(err, status.Driver) || s.region == nil ||
		s.channel.exported.Load() != 4096 {
		t.Errorf("memory that could not be deregistered is unmapped (%v)", err)
	}
	registered.err = nil
	if err := s.releaseMemory(); err != nil || s.region != nil || s.channel.exported.Load() != 0 {
		t.Errorf("memory that no device reaches stays mapped (%v)", err)
	}
}

func TestARejectedExportUsesNothingOfTheLimit(t *testing.T) {
	s := &session{channel: &channel{}, settings: &ChannelConfig{Limits: Limits{MaxExport: 100}}}
	s.channel.exported.Store(60)
	m := &controlmsg.ConfigureDataPath{Export: controlmsg.Export{Length: 50}}
	if err := s.importMemory(m); !errors.Is(err, status.NoMemory) {
		t.Errorf("import: %v", err)
	}
	if n := s.channel.exported.Load(); n != 60 {
		t.Errorf("%d bytes count as exported, want those of the other sessions", n)
	}
}

func TestASessionMayMakeTheRelayConnectAFewTimesInARow(t *testing.T) {
	s := &session{channel: &channel{dials: retry.NewPace(0)}, settings: &ChannelConfig{},
		dials: retry.NewPace(time.Hour)}
	for range sessionDialBurst {
		if err := s.awaitDial(t.Context(), netip.AddrPort{}); err != nil {
			t.Error(err)
		}
	}
	if err := s.awaitDial(t.Context(), netip.AddrPort{}); !errors.Is(err, status.Again) {
		t.Errorf("connects once more: %v", err)
	}
}

// TestASessionThatOpensDuringAReloadHasTheNewLimits lets a reload change the limits at any moment of
// the session's beginning.
func TestASessionThatOpensDuringAReloadHasTheNewLimits(t *testing.T) {
	limited := func(iops uint32) *ChannelConfig {
		return &ChannelConfig{QoS: QoS{Session: datapath.RateLimits{IOPS: iops,
			Burst: time.Second}}}
	}
	c := &channel{sessions: make(map[*session]struct{})}
	for round := range uint32(2000) {
		former, next := limited(1+2*round), limited(2+2*round)
		c.settings.Store(former)
		s := &session{}
		var both sync.WaitGroup
		both.Go(func() { c.adopt(s) })
		both.Go(func() {
			c.settings.Store(next)
			c.limitSessions()
		})
		both.Wait()
		if got := s.throttle.Limits(); got != next.QoS.Session {
			t.Fatalf("round %d: the limits are %+v, want %+v", round, got, next.QoS.Session)
		}
		delete(c.sessions, s)
	}
}
