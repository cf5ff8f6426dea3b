// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dpu is a Comch provider whose representors fail with an error each, nil for none.
type dpu struct {
	comch.Provider // nil: the relay uses only what follows

	mu       sync.Mutex
	errs     map[string]error
	attempts []time.Time   // to listen for the representor "late"
	silence  time.Duration // before the first answer for the representor "late"
	server   *comchServer
}

func (d *dpu) set(representor string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs[representor] = err
}

// tried returns when the relay has attempted to listen for the representor "late".
func (d *dpu) tried() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.attempts)
}

// fail makes the latest server fail.
func (d *dpu) fail(err error) {
	d.mu.Lock()
	server := d.server
	d.mu.Unlock()
	server.fails <- err
}

func (d *dpu) Capabilities(string) (comch.Capabilities, error) {
	return comch.Capabilities{Server: true, MaxClients: 16}, nil
}

func (d *dpu) Listen(_ context.Context, config comch.ServerConfig) (comch.Server, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if config.Representor == "late" {
		d.attempts = append(d.attempts, time.Now())
		if silence := d.silence; silence > 0 {
			d.silence = 0
			d.mu.Unlock()
			time.Sleep(silence)
			d.mu.Lock()
		}
	}
	if err := d.errs[config.Representor]; err != nil {
		return nil, err
	}
	d.server = &comchServer{fails: make(chan error), name: config.Representor}
	return d.server, nil
}

// comchServer is a server without clients.
type comchServer struct {
	fails chan error
	name  string
}

func (s *comchServer) Accept(ctx context.Context) (comch.Connection, error) {
	select {
	case err := <-s.fails:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *comchServer) Address() string                    { return s.name }
func (s *comchServer) SetAdmission(comch.Admission) error { return nil }
func (s *comchServer) Close() error                       { return nil }

// lateDevices is an RDMA provider whose devices fail to open with err.
type lateDevices struct {
	rdma.Provider
	mu  sync.Mutex
	err error
}

func (l *lateDevices) Open(address netip.Addr) (rdma.Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	return l.Provider.Open(address)
}

func (l *lateDevices) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// virtual makes workers sleep on the virtual clock.
var virtual = progress.Policy{Mode: progress.Stepped, Step: func(int) { time.Sleep(time.Second) }}

// yard is a relay with the channels of several representors, on a virtual clock.
type yard struct {
	*relay.Relay
	t       *testing.T
	dpu     *dpu
	devices *lateDevices

	mu    sync.Mutex
	ready relay.Readiness // as last reported
}

// startYard starts a relay. Errors are those of the representors that have channels.
func startYard(t *testing.T, errs map[string]error, representors ...string) *yard {
	t.Helper()
	y := &yard{t: t, dpu: &dpu{errs: errs},
		devices: &lateDevices{Provider: iwarp.New(iwarp.Options{})}}
	y.start(representors...)
	return y
}

func (y *yard) start(representors ...string) {
	y.t.Helper()
	y.startWith(settingsOf(representors...))
}

func (y *yard) startWith(settings relay.Settings) {
	y.t.Helper()
	r, err := relay.New(y.t.Context(), relay.Config{
		Comch: y.dpu, RDMA: y.devices, CPUs: []int{datapath.NoCPU}, Policy: virtual,
		OnReady: y.report, Settings: settings})
	if err != nil {
		y.t.Fatal(err)
	}
	y.Relay = r
	run(y.t, r.Run, r.Close)
}

func (y *yard) report(now relay.Readiness) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.ready = now
}

// readiness returns what the relay has reported last.
func (y *yard) readiness() relay.Readiness {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.ready
}

// settingsOf returns channels to a target of the DOCA applications, which the relay assumes to be
// ready.
func settingsOf(representors ...string) relay.Settings {
	var s relay.Settings
	for _, representor := range representors {
		s.Channels = append(s.Channels, relay.ChannelConfig{
			ChannelID: relay.ChannelID{Device: "dpu", Representor: representor, Name: "c"},
			Targets:   []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}, Volume: "volume",
			RDMAAddress: netip.MustParseAddr("127.0.0.1"), TargetProtocol: "doca-3.2",
			// Attempts to reach a target have an end, those to open the channel have none.
			Reconnect: retry.Policy{Attempts: retry.Times(1), FirstPause: time.Second,
				LongestPause: 8 * time.Second, Random: func() float64 { return 0 }},
		})
	}
	return s
}

// expect fails unless the channels, in the order of the configuration, have these states, and as
// many are reported as serving.
func (y *yard) expect(serving int, states ...relay.ChannelState) {
	y.t.Helper()
	synctest.Wait()
	channels := y.Channels()
	if len(channels) != len(states) {
		y.t.Fatalf("there are %d channels, want %d", len(channels), len(states))
	}
	for i, want := range states {
		got := channels[i]
		if got.State != want || (got.LastError != nil) != (want == relay.ChannelWaiting) ||
			(got.Address != "") != (want == relay.ChannelListening) {
			y.t.Errorf("channel %d is %+v, want %s", i, got, want)
		}
	}
	if now := y.readiness(); now.Serving != serving || now.Channels != len(states) ||
		(now.Err == nil) != (serving > 0) {
		y.t.Errorf("the relay reports %+v, want %d serving", now, serving)
	}
}

var errNoRepresentor = status.Errorf(status.NotFound, "there is no representor")

func TestARepresentorThatIsMissingKeepsNoOtherChannelDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{"late": errNoRepresentor}, "there", "late")
		y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
		if text := y.readiness().String(); text != "serving 1 of 2 channels: channel dpu/late/c: "+
			"clients cannot connect: there is no representor [NOT_FOUND]" {
			t.Errorf("the relay reports %q", text)
		}
		time.Sleep(time.Minute)
		y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
		y.dpu.set("late", nil)
		time.Sleep(8 * time.Second)
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		if text := y.readiness().String(); text != "serving 2 of 2 channels" {
			t.Errorf("the relay reports %q", text)
		}
		attempts := y.dpu.tried()
		begun := attempts[0]
		for i, want := range []time.Duration{0, 1, 3, 7, 15, 23, 31} {
			if at := attempts[i].Sub(begun); at != want*time.Second {
				t.Errorf("attempt %d follows after %v, want %d s", i+1, at, want)
			}
		}
	})
}

func TestARelayWithoutAnyChannelThatOpensKeepsTrying(t *testing.T) {
	for _, code := range []status.Code{status.NotFound, status.InUse, status.AlreadyExist,
		status.Driver, status.NotPermitted, status.OperatingSystem, status.Initialization} {
		synctest.Test(t, func(t *testing.T) {
			y := startYard(t, map[string]error{"late": code}, "late")
			y.expect(0, relay.ChannelWaiting)
			if err := y.readiness().Err; !errors.Is(err, code) {
				t.Errorf("the relay is not ready because of %v, want %v", err, code)
			}
			y.dpu.set("late", nil)
			time.Sleep(time.Second)
			y.expect(1, relay.ChannelListening)
		})
	}
}

func TestWhatNoAttemptCanMendIsToldAtOnce(t *testing.T) {
	for _, code := range []status.Code{status.InvalidValue, status.NotSupported, status.BadConfig,
		status.TooBig} {
		synctest.Test(t, func(t *testing.T) {
			d := &dpu{errs: map[string]error{"late": code}}
			_, err := relay.New(t.Context(), relay.Config{Comch: d,
				CPUs: []int{datapath.NoCPU}, Policy: virtual,
				RDMA: iwarp.New(iwarp.Options{}), Settings: settingsOf("late")})
			if !errors.Is(err, code) || !strings.Contains(err.Error(), "dpu/late/c") {
				t.Errorf("New returned %v, want %v", err, code)
			}
			y := startYard(t, map[string]error{"late": code}, "there", "late")
			y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
			y.dpu.set("late", nil)
			time.Sleep(time.Second)
			y.expect(2, relay.ChannelListening, relay.ChannelListening)
			y = startYard(t, map[string]error{"late": code}, "there")
			if err := y.Reconfigure(t.Context(), settingsOf("there", "late")); !errors.Is(err, code) {
				t.Errorf("Reconfigure returned %v, want %v", err, code)
			}
			y.expect(1, relay.ChannelListening)
		})
	}
}

func TestAReloadAddsAChannelWhoseRepresentorIsMissingAndWakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{"late": errNoRepresentor}, "there")
		both := settingsOf("there", "late")
		if err := y.Reconfigure(t.Context(), both); err != nil {
			t.Errorf("Reconfigure returned %v", err)
		}
		y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
		time.Sleep(time.Minute)
		synctest.Wait()
		y.dpu.set("late", nil)
		if err := y.Reconfigure(t.Context(), both); err != nil {
			t.Errorf("Reconfigure returned %v", err)
		}
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		y.dpu.set("late", errNoRepresentor)
		if err := y.Reconfigure(t.Context(), settingsOf("there")); err != nil {
			t.Errorf("Reconfigure returned %v", err)
		}
		y.expect(1, relay.ChannelListening)
	})
}

func TestADeviceThatIsMissingBelongsToItsChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &yard{t: t, dpu: &dpu{}, devices: &lateDevices{
			Provider: iwarp.New(iwarp.Options{}), err: errNoRepresentor}}
		y.start("a", "b")
		y.expect(0, relay.ChannelWaiting, relay.ChannelWaiting)
		y.devices.set(nil)
		time.Sleep(time.Second)
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
	})
}

func TestADeviceThatDoesNotAnswerHoldsUpOnlyItsChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &yard{t: t, dpu: &dpu{silence: time.Hour},
			devices: &lateDevices{Provider: iwarp.New(iwarp.Options{})}}
		begun := time.Now()
		y.start("there", "late")
		if waited := time.Since(begun); waited > 2*time.Second {
			t.Errorf("the others were not served for %v", waited)
		}
		y.expect(1, relay.ChannelListening, relay.ChannelWaiting)
		if reason := y.Channels()[1].LastError; !errors.Is(reason, status.TimeOut) {
			t.Errorf("the channel waits because of %v", reason)
		}
		time.Sleep(2 * time.Hour)
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		if n := len(y.dpu.tried()); n != 1 {
			t.Errorf("the device was asked %d times while it did not answer", n)
		}
	})
}

// The device answers when nobody waits for it: between two attempts.
func TestAnAnswerThatComesBetweenAttemptsOpensTheChannelOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &yard{t: t, dpu: &dpu{silence: 24 * time.Second},
			devices: &lateDevices{Provider: iwarp.New(iwarp.Options{})}}
		y.start("there", "late")
		time.Sleep(time.Minute)
		y.expect(2, relay.ChannelListening, relay.ChannelListening)
		for tries := 2; tries < 4; tries++ {
			y.dpu.fail(status.Errorf(status.Driver, "the device was reset"))
			time.Sleep(time.Minute)
			y.expect(2, relay.ChannelListening, relay.ChannelListening)
			if n := len(y.dpu.tried()); n != tries {
				t.Errorf("the server was created %d times, want %d", n, tries)
			}
		}
	})
}

func TestAServerThatFailsIsOpenedAgainWithRisingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := startYard(t, map[string]error{}, "late")
		y.expect(1, relay.ChannelListening)
		time.Sleep(time.Hour)
		for _, pause := range []time.Duration{1, 2, 4, 8, 8} {
			y.dpu.fail(status.Errorf(status.Driver, "the device was reset"))
			y.expect(0, relay.ChannelWaiting)
			time.Sleep(pause*time.Second - time.Nanosecond)
			y.expect(0, relay.ChannelWaiting)
			time.Sleep(time.Nanosecond)
			y.expect(1, relay.ChannelListening)
		}
	})
}
