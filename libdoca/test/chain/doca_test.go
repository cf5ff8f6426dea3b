// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package chain

import (
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/dma"
	dmadoca "github.com/zc-relay/zc-relay/pkg/dma/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// overDOCA makes the chains of a test use the providers for hardware, on the emulation of libdoca.
// The memory that they import is opaque to iWARP, so their channels need bounce buffers.
func overDOCA(t *testing.T, release libdoca.Release) {
	chaintest.Stage(t)
	t.Cleanup(func() { awaitNoObjects(t) })
	chaintest.UseProviders(t, func(t testing.TB, directory string, log *zap.Logger) (
		comch.Provider, dma.Provider) {
		awaitNoObjects(t) // of the previous test: connections are closed in the background
		if err := libdoca.Configure(libdoca.Config{Release: release, Directory: directory,
			Report: func(m libdoca.Misuse) { t.Errorf("%s: %s", m.Function, m.Rule) },
		}); err != nil {
			t.Fatal(err)
		}
		loader := doca.Resolved(libdoca.Lookup)
		return comchdoca.New(comchdoca.Options{Loader: loader, Logger: log}),
			dmadoca.New(dmadoca.Options{Loader: loader})
	})
}

// awaitNoObjects waits until no object of libdoca exists.
func awaitNoObjects(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "no object of libdoca exists",
		func() bool { return len(libdoca.Objects()) == 0 })
}

func TestAChannelOverDOCAPassesTheTestsOfAnEmulatedOne(t *testing.T) {
	for name, release := range map[string]libdoca.Release{
		"2.9": libdoca.Release2_9, "3.3": libdoca.Release3_3,
	} {
		t.Run(name, func(t *testing.T) {
			if release < libdoca.Release3_0 {
				testkit.OnlyComplete(t, "in 3.3, everything is the same, and threads sleep")
			}
			overDOCA(t, release)
			chaintest.RunChannel(t)
		})
	}
}
