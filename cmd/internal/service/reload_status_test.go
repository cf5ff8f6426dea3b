// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestTheMetricsShowAFailedReloadAndAPendingRestart(t *testing.T) {
	s := newSite(t)
	if ended := s.start("ZC_TARGET__OPERATIONS__LISTEN=127.0.0.1:0",
		"ZC_RELAY__OPERATIONS__LISTEN=127.0.0.1:0"); ended != nil {
		t.Fatalf("%s ended at its start", ended.Name)
	}
	for _, c := range []struct {
		daemon *testkit.Process
		file   string
	}{{s.relay, "relay.yaml"}, {s.target, "target.yaml"}} {
		shows := func(what string, lines ...string) {
			t.Helper()
			testkit.Eventually(t, c.file+" shows "+what, func() bool {
				text := scrape(t, c.daemon)
				for _, line := range lines {
					if !strings.Contains(text, "\n"+line+"\n") {
						return false
					}
				}
				return true
			})
		}
		reload := func(former, now string) {
			t.Helper()
			text := strings.Replace(string(read(t, s.path(c.file))), former, now, 1)
			if err := os.WriteFile(s.path(c.file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c.daemon.Signal(syscall.SIGHUP)
		}
		shows("the start", "zc_reload_success 1", "zc_restart_pending_settings 0")
		reload("log: {", "workers: {poll: event}\nlog: {format: json, ")
		c.daemon.AwaitLog(`"operation": "reload", "object": "daemon", "via": "signal", ` +
			`"signal": "hangup", "outcome": "done"`)
		shows("a pending restart", "zc_reload_success 1", "zc_restart_pending_settings 2")
		reload("control:", "contrl:")
		shows("a failed reload", "zc_reload_success 0", "zc_restart_pending_settings 2")
		reload("contrl:", "control:")
		shows("a successful reload", "zc_reload_success 1", "zc_restart_pending_settings 2")
		reload("workers: {poll: event}\nlog: {format: json, ", "log: {")
		shows("the former settings", "zc_reload_success 1", "zc_restart_pending_settings 0")
	}
}
