//go:build cgo

package doca_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/doca"
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
