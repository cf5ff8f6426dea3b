// SPDX-License-Identifier: Apache-2.0

//go:build soak

package comch_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/test/comch/stubborn"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// hangingDevice makes the test binary run TestHangingDevice.
const hangingDevice = "COMCH_DOCA_TEST_HANG"

// A device that does nothing any more keeps what it holds, but holds up nobody for long. What it
// keeps stays in the process until it ends, so that is another one.
func TestADeviceThatHangsIsGivenUp(t *testing.T) {
	process := exec.Command(os.Args[0], "-test.run=^TestHangingDevice$", "-test.v")
	process.Env = append(os.Environ(), hangingDevice+"="+t.TempDir())
	if output, err := process.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestHangingDevice(t *testing.T) {
	directory := os.Getenv(hangingDevice)
	if directory == "" {
		return // it is not a test by itself
	}
	if err := libdoca.Configure(libdoca.Config{Directory: directory,
		Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) },
	}); err != nil {
		t.Fatal(err)
	}
	provider := comchdoca.New(comchdoca.Options{
		Loader: doca.Resolved(stubborn.Over(libdoca.Lookup))})
	ctx := testContext(t)
	p := connectPair(ctx, t, provider, comch.ServerConfig{Name: "server"})
	consumer, producer := p.path(ctx, t)
	if err := producer.Send([]byte("in flight"), nil); err != nil {
		t.Fatal(err)
	}
	stubborn.HoldProgress(true)
	producer.Flush()
	begin := time.Now()
	producer.Abort()
	expectTimeOut(t, consumer, producer)
	expectTimeOut(t, p.client, p.accepted)
	if err := p.server.Close(); err != nil {
		t.Error(err)
	}
	// Each pair has a wait or two; a busy machine has twice the time.
	if took := time.Since(begin); took > 8*comch.CloseTimeout {
		t.Errorf("closing has taken %v", took)
	}
	for stacks := ""; stacks == "" || strings.Contains(stacks, "(*endpoint).run"); {
		if ctx.Err() != nil {
			t.Fatalf("a thread of the provider has not ended:\n%s", stacks)
		}
		runtime.Gosched()
		buffer := make([]byte, 1<<20)
		stacks = string(buffer[:runtime.Stack(buffer, true)])
	}
	if !t.Failed() {
		os.Exit(0) // before goleak sees what the emulation of libdoca keeps
	}
}

// expectTimeOut closes all objects at the same time.
func expectTimeOut(t *testing.T, objects ...interface{ Close() error }) {
	t.Helper()
	var all sync.WaitGroup
	for _, object := range objects {
		all.Go(func() {
			if err := object.Close(); !errors.Is(err, status.TimeOut) {
				t.Errorf("close %T: %v", object, err)
			}
		})
	}
	all.Wait()
}
