//go:build cgo

package doca_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	rdmadoca "github.com/zc-relay/zc-relay/pkg/rdma/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

// emulate makes the emulation of libdoca answer as a release, and fails the test for each misuse
// and each object that is left.
func emulate(t *testing.T, release libdoca.Release) *doca.Loader {
	t.Helper()
	err := libdoca.Configure(libdoca.Config{Release: release, Directory: t.TempDir(),
		Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) }})
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
			if release < libdoca.Release3_0 && !soak {
				t.Skip("the soak tests run it: it differs from 3.3 only in that nobody sleeps")
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

func TestANewcomerIsServedWhileSilentClientsHoldTheListener(t *testing.T) {
	const silent = 1000
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
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
