// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package comch_test

import (
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/test/comch/stubborn"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAMissingDeviceIsToldFromAMissingServer(t *testing.T) {
	provider := newProvider(t, libdoca.Config{})
	for device, want := range map[string]bool{"": false, "b1:00.7": true} {
		_, err := provider.Connect(testkit.Context(t),
			comch.ClientConfig{Device: device, Name: "absent"})
		_, isDevice := errors.AsType[*comch.NoDeviceError](err)
		if !errors.Is(err, status.NotFound) || isDevice != want {
			t.Errorf("device %q: %v", device, err)
		}
	}
}

// A thread that stands still in libdoca delays a look at its connections once, and not for long.
func TestALookAtAConnectionGivesUpOnAThreadThatStandsStill(t *testing.T) {
	const lookTimeout = 100 * time.Millisecond // of the provider
	loader := emulate(t, libdoca.Config{})
	ctx := testkit.Context(t)
	server := must[comch.Server](t)(comchdoca.New(comchdoca.Options{
		Loader: doca.Resolved(stubborn.Over(libdoca.Lookup))}).Listen(ctx,
		comch.ServerConfig{Name: "server"}))
	// The client's own thread goes on.
	client := must[comch.Connection](t)(comchdoca.New(comchdoca.Options{Loader: loader}).Connect(
		ctx, comch.ClientConfig{Name: "server"}))
	accepted := must[comch.Connection](t)(server.Accept(ctx))
	former := time.Now()
	if comch.HasEnded(accepted, former) {
		t.Error("the connection has ended before its end")
	}
	stubborn.StandStill(true)
	defer stubborn.StandStill(false)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	// A look that has been made is not made again: it would take the one delay.
	if comch.HasEnded(accepted, former) {
		t.Error("the connection has ended before its end")
	}
	begin := time.Now()
	for range 1000 {
		if comch.HasEnded(accepted, time.Now()) {
			t.Fatal("nobody can know that the connection has ended")
		}
	}
	if took := time.Since(begin); took < lookTimeout || took > 100*lookTimeout {
		t.Errorf("1000 looks have taken %v, one takes up to %v", took, lookTimeout)
	}
	stubborn.StandStill(false)
	testkit.Eventually(t, "the end is found",
		func() bool { return comch.HasEnded(accepted, time.Now()) })
	if err := errors.Join(accepted.Close(), server.Close()); err != nil {
		t.Error(err)
	}
}
