// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAnOutageOfHundredsOfChannelsIsLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		var outages Outages
		links := make([]*Link, 300)
		for i := range links {
			links[i] = &Link{Address: netip.MustParseAddrPort("10.0.0.5:7470"), log: zap.New(core)}
		}
		failAll := func(code status.Code) {
			for _, l := range links {
				outages.failed(l, "down", status.Errorf(code, "not there"))
			}
		}
		last := func(want int) map[string]any {
			t.Helper()
			if logs.Len() != want {
				t.Fatalf("%d lines, want %d", logs.Len(), want)
			}
			return logs.All()[want-1].ContextMap()
		}
		for range 9 {
			failAll(status.NotConnected)
			time.Sleep(time.Second)
		}
		last(1)
		time.Sleep(time.Second)
		failAll(status.NotConnected)
		if line := last(2); line["channels"] != int64(300) || line["attempts"] != int64(2701) ||
			line["for"] != 10*time.Second {
			t.Errorf("after ten seconds: %v", line)
		}
		for range 60 {
			time.Sleep(time.Second)
			failAll(status.NotConnected)
		}
		last(4) // after 30 and 70 seconds

		failAll(status.TimeOut) // is another reason
		last(5)
		for _, l := range links {
			outages.ended(l)
		}
		failAll(status.NotConnected)
		last(6)
		if len(outages.open) != 1 {
			t.Errorf("%d outages are open", len(outages.open))
		}

		// What a target answers may differ between channels.
		for range 2 {
			for _, l := range links {
				outages.failed(l, "down", &controlmsg.Error{Code: status.NotFound})
			}
		}
		last(306)
	})
}
