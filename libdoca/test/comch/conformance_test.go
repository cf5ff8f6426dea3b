// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package comch tests the provider of Comch over libdoca, on its emulation.
package comch_test

import (
	"context"
	"errors"
	"flag"
	"runtime"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts/contextstest"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// emulate makes the emulation of libdoca answer as a release, and fails the test for each misuse
// and each object that is left.
func emulate(t testing.TB, config libdoca.Config) *doca.Loader {
	t.Helper()
	return emulateIn(t, t.TempDir(), config)
}

// emulateIn is emulate in a directory that other processes may use, too.
func emulateIn(t testing.TB, directory string, config libdoca.Config) *doca.Loader {
	t.Helper()
	config.Directory = directory
	config.Report = func(m libdoca.Misuse) {
		// A connection may end before its end can be known.
		if m.Rule != "the connection is not established, or has ended" {
			t.Errorf("misuse of %s: %s", m.Function, m.Rule)
		}
	}
	if err := libdoca.Configure(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// An aborted connection is released by its own thread.
		deadline := time.Now().Add(time.Minute)
		for len(libdoca.Objects()) > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("objects are left: %v", libdoca.Objects())
			}
			runtime.Gosched()
		}
	})
	return doca.Resolved(libdoca.Lookup)
}

func newProvider(t testing.TB, config libdoca.Config) comch.Provider {
	t.Helper()
	return comchdoca.New(comchdoca.Options{Loader: emulate(t, config)})
}

func TestConformance(t *testing.T) {
	if !testkit.IsComplete() {
		limitRandomRuns(t, 20)
	}
	config := comchtest.Config{Provider: newProvider(t, libdoca.Config{})}
	comchtest.Run(t, config)
	contextstest.Run(t, config)
}

// limitRandomRuns bounds the random runs of the suite, each of which makes many connections.
func limitRandomRuns(t *testing.T, runs int) {
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	t.Cleanup(func() { _ = checks.Value.Set(before) })
	if err := checks.Value.Set(strconv.Itoa(runs)); err != nil {
		t.Fatal(err)
	}
}

func TestReleasesFrom29OnCarryMessages(t *testing.T) {
	for name, release := range map[string]libdoca.Release{
		"2.9": libdoca.Release2_9, "2.10": libdoca.Release2_10, "3.0": libdoca.Release3_0,
		"3.3": libdoca.Release3_3,
	} {
		t.Run(name, func(t *testing.T) {
			provider := newProvider(t, libdoca.Config{Release: release})
			c, err := provider.Capabilities("")
			if err != nil {
				t.Fatal(err)
			}
			if wait := release >= libdoca.Release3_0; c.CanWait != wait {
				t.Errorf("CanWait is %v", c.CanWait)
			}
			carryMessage(t, provider)
		})
	}
}

func TestAProviderThatNeverWaitsCarriesMessages(t *testing.T) {
	provider := comchdoca.New(comchdoca.Options{Loader: emulate(t, libdoca.Config{}),
		NeverWait: true})
	c, err := provider.Capabilities("")
	if err != nil || c.CanWait {
		t.Errorf("CanWait is %v, error %v", c.CanWait, err)
	}
	carryMessage(t, provider)
}

// carryMessage sends a message on the data path from a host to a DPU.
func carryMessage(t *testing.T, provider comch.Provider) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	server := must[comch.Server](t)(provider.Listen(ctx, comch.ServerConfig{Name: "server"}))
	client := must[comch.Connection](t)(provider.Connect(ctx, comch.ClientConfig{Name: "server"}))
	accepted := must[comch.Connection](t)(server.Accept(ctx))
	consumer := must[comch.Consumer](t)(accepted.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: 1, MemorySize: 64}))
	event := must[comch.ConsumerEvent](t)(client.NextConsumerEvent(ctx))
	producer := must[comch.Producer](t)(client.NewProducer(ctx, event.ID))
	errs := []error{consumer.PostReceive(0, 64, 7), producer.Send([]byte("hello"), []byte{1})}
	consumer.Flush()
	producer.Flush()
	var received [1]comch.Received
	for consumer.Poll(received[:]) == 0 && ctx.Err() == nil {
		producer.(comch.LateProducer).Poll()
		runtime.Gosched()
	}
	if r := received[0]; r.UserData != 7 || string(consumer.Memory()[:r.Length]) != "hello" {
		t.Errorf("received %+v", r)
	}
	errs = append(errs, producer.Close(), consumer.Close(), client.Close(), accepted.Close(),
		server.Close())
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestOlderReleasesAreRejected(t *testing.T) {
	for release, want := range map[libdoca.Release]string{
		libdoca.Release2_7: "comch provider doca: DOCA ≥ 2.9 is needed (found 2.7-style Comch) " +
			"[NOT_SUPPORTED]",
		libdoca.Release2_6: "comch provider doca: DOCA ≥ 2.9 is needed (found 2.6.0058; it has no " +
			"doca_comch_*) [NOT_SUPPORTED]",
	} {
		provider := newProvider(t, libdoca.Config{Release: release})
		_, err := provider.Capabilities("")
		if err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

func TestDevicesHaveRolesAndRepresentors(t *testing.T) {
	provider := newProvider(t, libdoca.Config{})
	devices, err := provider.(comch.DeviceLister).Devices()
	if err != nil || len(devices) != 2 {
		t.Fatalf("got %+v, %v", devices, err)
	}
	dpu, host := devices[0], devices[1]
	if dpu.PCI != "03:00.0" || dpu.RDMA != "mlx5_0" || !dpu.CanServe || dpu.CanConnect ||
		len(dpu.Representors) != 1 || dpu.Representors[0].PCI != "b1:00.0" ||
		dpu.Representors[0].VUID == "" {
		t.Errorf("the DPU's device is %+v", dpu)
	}
	if host.PCI != "b1:00.0" || host.CanServe || !host.CanConnect || len(host.Representors) != 0 {
		t.Errorf("the host's device is %+v", host)
	}
}

func TestUsersCannotBeAdmitted(t *testing.T) {
	_, err := newProvider(t, libdoca.Config{}).Listen(context.Background(), comch.ServerConfig{
		Name: "server", Admission: comch.Admission{AllowUsers: []uint32{1000}}})
	if !errors.Is(err, status.InvalidValue) {
		t.Errorf("got %v", err)
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
