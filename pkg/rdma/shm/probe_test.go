// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A relay probes for every session that it opens.
func TestAProbeLeavesNoTraceInTheLog(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	device, err := New(Options{Logger: zap.New(core)}).Open(netip.MustParseAddr("127.0.0.1"))
	must(t, err)
	defer func() { must(t, device.Close()) }()
	l, err := device.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	must(t, err)
	defer func() { must(t, l.Close()) }()
	must(t, Probe(t.Context(), l.Address().Port()))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := l.Accept(ctx); err == nil {
		t.Error("a probe is taken for a request")
	}
	if logs.Len() > 0 {
		t.Errorf("%v", logs.All())
	}
}
