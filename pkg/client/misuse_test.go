// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/gateway"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// misuser has what misuses begin with.
type misuser struct {
	t      *testing.T
	config client.Config // of a volume with one queue of depth 2
}

// open opens a volume until the end of the test.
func (m *misuser) open() *client.Volume {
	m.t.Helper()
	v, err := client.Open(m.t.Context(), m.config)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(v.Abort)
	return v
}

// closed returns a closed volume.
func (m *misuser) closed() *client.Volume {
	m.t.Helper()
	v := m.open()
	if err := v.Close(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	return v
}

// opening returns the error of Open with a changed configuration.
func opening(change func(*client.Config)) func(*misuser) error {
	return func(m *misuser) error {
		config := m.config
		change(&config)
		_, err := client.Open(m.t.Context(), config)
		return err
	}
}

// submitting returns the error of Submit.
func submitting(request *client.Request) func(*misuser) error {
	return func(m *misuser) error { return m.open().Queue(0).Submit(request) }
}

func (m *misuser) engine() *progress.Engine {
	m.t.Helper()
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = engine.Close() })
	return engine
}

// server returns an NBD server without exports.
func (m *misuser) server() *nbd.Server {
	m.t.Helper()
	server, err := nbd.NewServer(nbd.Config{Workers: 2})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = server.Close(context.Background()) })
	return server
}

// exporting returns the error of gateway.New with a changed configuration.
func exporting(change func(*gateway.Config)) func(*misuser) error {
	return func(m *misuser) error {
		v := m.open()
		config := gateway.Config{Volume: v, Queues: []gateway.Queue{v.Queue(0)}, Sessions: 1}
		change(&config)
		_, err := gateway.New(config)
		return err
	}
}

// serving returns the error of target.New with a changed configuration.
func serving(change func(*target.Config)) func(*misuser) error {
	return func(m *misuser) error {
		config := targetConfig()
		change(&config)
		_, err := target.New(m.t.Context(), config)
		return err
	}
}

func targetConfig() target.Config {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	return target.Config{RDMA: iwarp.New(iwarp.Options{}), Listen: local, RDMAListen: local,
		CPUs: []int{datapath.NoCPU}}
}

// target returns a target that serves nobody.
func (m *misuser) target() *target.Target {
	m.t.Helper()
	s, err := target.New(m.t.Context(), targetConfig())
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = s.Close() })
	return s
}

// disk returns a volume in memory.
func (m *misuser) disk() volume.Volume {
	m.t.Helper()
	spec, err := volume.ParseSpec("disk=memory:1MiB", 4096)
	if err != nil {
		m.t.Fatal(err)
	}
	v, err := volume.Open(spec)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = v.Close(context.Background()) })
	return v
}

// noContext is what linters keep programs from passing in one way.
var noContext context.Context

// misuses is what programs do wrong. Each has to fail with a code, and a text that says what.
var misuses = []struct {
	name string
	call func(*misuser) error
	want error
	says string
}{
	{"Open without a provider", opening(func(c *client.Config) { c.Provider = nil }),
		status.InvalidValue, "Config.Provider is nil"},
	{"Open with negative queues", opening(func(c *client.Config) { c.Queues = -1 }),
		status.InvalidValue, "Config.Queues is -1"},
	{"Open with a negative depth", opening(func(c *client.Config) { c.Depth = math.MinInt }),
		status.InvalidValue, "Config.Depth is -"},
	{"Open with a huge depth", opening(func(c *client.Config) { c.Depth = math.MaxInt }),
		status.TooBig, "Config.Depth is 9223372036854775807"},
	{"Open with huge memory", opening(func(c *client.Config) { c.MemorySize = math.MaxUint64 }),
		status.TooBig, "Config.MemorySize is 18446744073709551615 bytes"},
	{"Open within a negative time", opening(func(c *client.Config) { c.ControlTimeout = -1 }),
		status.InvalidValue, "Config.ControlTimeout is -1ns"},
	{"Open with a negative release", opening(func(c *client.Config) { c.ReleaseTimeout = -1 }),
		status.InvalidValue, "Config.ReleaseTimeout is -1ns"},
	{"Open with an empty instance",
		opening(func(c *client.Config) { c.Instance = &client.Instance{} }),
		status.InvalidValue, "Config.Instance is empty: use NewInstance"},
	{"Open for an empty owner", opening(func(c *client.Config) { c.Owner = &client.Owner{} }),
		status.InvalidValue, "Config.Owner is empty: use NewOwner"},
	{"Open instead of nobody", opening(func(c *client.Config) { c.Preempt = "somebody" }),
		status.InvalidValue, "Config.Preempt: "},
	{"Open without a context", func(m *misuser) error {
		_, err := client.Open(noContext, m.config)
		return err
	}, status.InvalidValue, "the context is nil"},
	{"Open twice with an instance", func(m *misuser) error {
		m.config.Instance = client.NewInstance()
		m.open()
		_, err := client.Open(m.t.Context(), m.config)
		return err
	}, status.InUse, "Config.Instance belongs to a volume that is still open"},
	{"Describe without a provider", func(m *misuser) error {
		_, err := client.Describe(m.t.Context(), client.Config{})
		return err
	}, status.InvalidValue, "Config.Provider is nil"},

	{"read before the start", func(m *misuser) error {
		_, err := m.open().ReadAt(make([]byte, 1), -1)
		return err
	}, status.InvalidValue, "offset is negative"},
	{"write beyond the end", func(m *misuser) error {
		_, err := m.open().WriteAt(make([]byte, 2), math.MaxInt64-1)
		return err
	}, status.InvalidValue, "has only"},
	{"trim less than nothing", func(m *misuser) error { return m.open().Trim(0, math.MinInt64) },
		status.InvalidValue, "has only"},
	{"zero a part of a block", func(m *misuser) error { return m.open().WriteZeroes(1, 4096) },
		status.InvalidValue, "whole blocks"},
	{"extents of too much", func(m *misuser) error {
		_, err := m.open().Extents(4096, math.MaxInt64)
		return err
	}, status.InvalidValue, "has only"},
	{"read without a context", func(m *misuser) error {
		_, err := m.open().ReadAtContext(noContext, make([]byte, 1), 0)
		return err
	}, status.InvalidValue, "the context is nil"},
	{"read after Close", func(m *misuser) error {
		_, err := m.closed().ReadAt(make([]byte, 1), 0)
		return err
	}, os.ErrClosed, `"disk": closed by this program`},
	{"flush after Close", func(m *misuser) error { return m.closed().Flush() },
		os.ErrClosed, `"disk": closed by this program`},
	{"flush for an empty user", func(*misuser) error { return new(client.Flusher).Flush() },
		status.InvalidValue, "use Volume.NewFlusher"},
	{"reopen what does not come back", func(m *misuser) error { return m.open().Reopen(nil) },
		status.NotSupported, "is not reopened"},

	{"submit nothing", submitting(nil), status.InvalidValue, "Request is nil"},
	{"submit what only relays send", submitting(&client.Request{Type: 3}),
		status.InvalidValue, "type"},
	{"submit flags of the protocol", submitting(&client.Request{Type: client.Flush, Flags: 1 << 20}),
		status.InvalidValue, "flags"},
	{"submit more than memory", submitting(&client.Request{Type: client.Read, Length: 4096,
		Memory: math.MaxUint64}), status.InvalidValue, "of memory"},
	{"submit beyond the end", submitting(&client.Request{Type: client.Read, Length: 4096,
		Offset: math.MaxUint64 &^ 4095}), status.InvalidValue, "has only"},
	{"submit more than one request moves", submitting(&client.Request{Type: client.Write,
		Length: 128 << 10}), status.TooBig, "one request at most"},
	{"submit more than the depth", func(m *misuser) error {
		q := m.open().Queue(0)
		var err error
		for range q.Outstanding() + 100 {
			if err = q.Submit(&client.Request{Type: client.Flush}); err != nil {
				break
			}
		}
		return err
	}, status.Again, ""},
	{"submit after Close", func(m *misuser) error {
		q := m.closed().Queue(0)
		return q.Submit(&client.Request{Type: client.Flush})
	}, os.ErrClosed, "closed by this program"},
	{"submit for a user of another volume", func(m *misuser) error {
		return m.open().Queue(0).Submit(&client.Request{Type: client.Flush,
			Flusher: m.open().NewFlusher()})
	}, status.InvalidValue, "user of another volume"},
	{"attach to nothing", func(m *misuser) error { return m.open().Queue(0).Attach(nil) },
		status.InvalidValue, "the engine is nil"},
	{"attach to two engines", func(m *misuser) error {
		q, engine := m.open().Queue(0), m.engine()
		if err := q.Attach(engine); err != nil {
			m.t.Error(err)
		}
		defer q.Detach(engine)
		return q.Attach(m.engine())
	}, status.InUse, "another engine: Detach it first"},
	{"attach to a closed engine", func(m *misuser) error {
		engine := m.engine()
		_ = engine.Close()
		return m.open().Queue(0).Attach(engine)
	}, os.ErrClosed, "progress engine"},
	{"attach after Close", func(m *misuser) error { return m.closed().Queue(0).Attach(m.engine()) },
		os.ErrClosed, `queue 0 of volume "disk"`},

	{"export all queues of nothing", func(*misuser) error {
		_, err := gateway.Of(nil)
		return err
	}, status.InvalidValue, "the volume is nil"},
	{"export a volume without queues", func(m *misuser) error {
		m.config.Queues = 0
		_, err := gateway.Of(m.open())
		return err
	}, status.InvalidValue, "set client.Config.Queues"},
	{"export nothing", exporting(func(c *gateway.Config) { c.Volume = nil }),
		status.InvalidValue, "Config.Volume is nil"},
	{"export without queues", exporting(func(c *gateway.Config) { c.Queues = nil }),
		status.InvalidValue, "Config.Queues is empty"},
	{"export a nil queue", exporting(func(c *gateway.Config) { c.Queues = []gateway.Queue{nil} }),
		status.InvalidValue, "Config.Queues[0] is nil"},
	{"export a queue twice",
		exporting(func(c *gateway.Config) { c.Queues = append(c.Queues, c.Queues[0]) }),
		status.InUse, "Config.Queues[1] is the same queue as Config.Queues[0]"},
	{"export for nobody", exporting(func(c *gateway.Config) { c.Sessions = 0 }),
		status.InvalidValue, "Config.Sessions is 0"},
	{"export for everybody", exporting(func(c *gateway.Config) { c.Sessions = math.MaxInt }),
		status.TooBig, "Config.Sessions is 9223372036854775807"},
	{"export a closed volume", exporting(func(c *gateway.Config) {
		_ = c.Volume.(*client.Volume).Close(context.Background())
	}), os.ErrClosed, "closed by this program"},
	{"serve NBD with fewer queues than workers", func(m *misuser) error {
		m.config.MemorySize = 1 << 20
		v := m.open()
		export, err := gateway.New(gateway.Config{Volume: v, Sessions: 2,
			Queues: []gateway.Queue{v.Queue(0)}})
		if err != nil {
			m.t.Fatal(err)
		}
		return m.server().AddExport("disk", export)
	}, status.TooBig, "worker 1 has no queue"},
	{"serve NBD without threads", func(*misuser) error {
		_, err := nbd.NewServer(nbd.Config{Workers: -1})
		return err
	}, status.InvalidValue, "Config.Workers is negative"},
	{"serve NBD with too many threads", func(*misuser) error {
		_, err := nbd.NewServer(nbd.Config{Workers: math.MaxInt})
		return err
	}, status.TooBig, "Config.Workers is 9223372036854775807"},
	{"serve nothing by NBD", func(m *misuser) error { return m.server().AddExport("x", nil) },
		status.InvalidValue, `export "x": the Export is nil`},
	{"serve NBD to nobody", func(m *misuser) error { return m.server().Serve(nil) },
		status.InvalidValue, "the listener is nil"},
	{"serve NBD after Close", func(m *misuser) error {
		server := m.server()
		_ = server.Close(m.t.Context())
		return server.AddExport("x", &gateway.Export{})
	}, os.ErrClosed, "NBD server"},

	{"a target without RDMA", serving(func(c *target.Config) { c.RDMA = nil }),
		status.InvalidValue, "Config.RDMA is nil"},
	{"a target without workers", serving(func(c *target.Config) { c.CPUs = nil }),
		status.InvalidValue, "Config.CPUs is empty"},
	{"a target nowhere", serving(func(c *target.Config) { c.Listen = netip.AddrPort{} }),
		status.InvalidValue, "Config.Listen is not set"},
	{"a target of nothing", serving(func(c *target.Config) {
		c.Volumes = map[string]target.Offer{"disk": {}}
	}), status.InvalidValue, `volume "disk"`},
	{"offer after Close", func(m *misuser) error {
		s := m.target()
		return errors.Join(s.Close(), s.Offer("disk", target.Offer{Volume: m.disk()}))
	}, os.ErrClosed, `offer volume "disk"`},
	{"run a target after Close", func(m *misuser) error {
		s := m.target()
		return errors.Join(s.Close(), s.Run(m.t.Context()))
	}, os.ErrClosed, "run the target"},
	{"run a target twice", func(m *misuser) error {
		s, ended := m.target(), ended()
		return errors.Join(s.Run(ended), s.Run(ended))
	}, status.BadState, "Run has been called before"},
	{"a relay without Comch", func(m *misuser) error {
		_, err := relay.New(m.t.Context(), relay.Config{RDMA: iwarp.New(iwarp.Options{})})
		return err
	}, status.InvalidValue, "Config.Comch is nil"},

	{"a queue after Close", func(m *misuser) error {
		v := m.disk()
		_ = v.Close(m.t.Context())
		_, err := v.NewQueue(1)
		return err
	}, os.ErrClosed, `open queue of volume "disk"`},
	{"resize after Close", func(m *misuser) error {
		v := m.disk()
		_ = v.Close(m.t.Context())
		return v.Resize(2<<20, false)
	}, os.ErrClosed, `resize volume "disk"`},
	{"a queue of no depth", func(m *misuser) error {
		_, err := m.disk().NewQueue(0)
		return err
	}, status.InvalidValue, "depth 0"},
	{"submit to a closed queue", func(m *misuser) error {
		v := m.disk()
		q, err := v.NewQueue(1)
		if err != nil {
			m.t.Fatal(err)
		}
		_ = errors.Join(q.Close(), v.Close(m.t.Context()))
		return q.Submit(&volume.Request{Operation: iomsg.OpRead, Length: 4096,
			Buffer: make([]byte, 4096)})
	}, os.ErrClosed, `queue of volume "disk"`},
	{"submit nothing to a volume", func(m *misuser) error {
		q, err := m.disk().NewQueue(1)
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { _ = q.Close() })
		return q.Submit(nil)
	}, status.InvalidValue, "Request is nil"},
	{"open a volume without a backend", func(*misuser) error {
		_, err := volume.Open(volume.Spec{Name: "disk", BlockSize: 4096})
		return err
	}, status.InvalidValue, "Spec.Backend is nil"},
	{"hook nothing", func(*misuser) error {
		var injector *fault.Injector
		injector.Release()
		injector.TurnOn("")
		injector.TurnOff("")
		if p := injector.Point(fault.Volume, "read"); p != nil {
			return errors.New("no injector has a rule")
		}
		_, err := injector.NewWaiter(nil)
		return err
	}, status.InvalidValue, "the waiter of what is hooked is nil"},
	{"poll nothing", func(m *misuser) error { return m.engine().Add(nil) },
		status.InvalidValue, "it is nil"},
}

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestMisuseFailsAndHurtsNobody misuses the public packages in one way after another, beside an
// honest client of the same relay.
func TestMisuseFailsAndHurtsNobody(t *testing.T) {
	provider, stop := chain()
	t.Cleanup(stop)
	rounds := honest(t, provider)
	for _, m := range misuses {
		t.Run(m.name, func(t *testing.T) {
			user := &misuser{t: t, config: client.Config{Provider: provider,
				Device: emulated.DefaultHostDevice, Queues: 1, Depth: 2, SyncDepth: 1,
				BufferSize: 64 << 10}}
			err := outcome(t, func() error { return m.call(user) })
			if !errors.Is(err, m.want) || err != nil && !strings.Contains(err.Error(), m.says) {
				t.Errorf("it ends with %v, want %v with %q", err, m.want, m.says)
			}
			now := rounds.Load()
			testkit.Eventually(t, "the honest client goes on",
				func() bool { return rounds.Load() > now+1 })
		})
	}
}

// honest starts a client that writes and reads back until the test ends, and returns how often it
// has.
func honest(t *testing.T, provider comch.Provider) *atomic.Uint64 {
	v, err := client.Open(t.Context(), client.Config{Provider: provider,
		Device: emulated.DefaultHostDevice})
	if err != nil {
		t.Fatal(err)
	}
	rounds, done := new(atomic.Uint64), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		got := make([]byte, 4096)
		for {
			want := bytes.Repeat([]byte{byte(rounds.Load())}, len(got))
			_, failure := v.WriteAt(want, 8192)
			_, err := v.ReadAt(got, 8192)
			if err := errors.Join(failure, err); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the honest client is hurt: %v", err)
				return
			}
			rounds.Add(1)
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		running.Wait()
		if err := v.Close(context.Background()); err != nil {
			t.Errorf("the honest client cannot close its volume: %v", err)
		}
	})
	return rounds
}

// outcome returns the error of a call, which must neither panic nor hang.
func outcome(t *testing.T, call func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		err := errors.New("its preparations have failed")
		defer func() {
			if reason := recover(); reason != nil {
				err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
			}
			result <- err
		}()
		err = call()
	}()
	select {
	case err := <-result:
		return err
	case <-time.After(testkit.Patience):
		t.Fatal("it hangs")
		return nil
	}
}
