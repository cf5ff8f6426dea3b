// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDataSecurityIsAgreedOn runs relay and target with every pair of settings that says something
// of its own.
func TestDataSecurityIsAgreedOn(t *testing.T) {
	t.Parallel()
	if len(targetFlags())+len(relayFlags()) > 0 {
		t.Skip("only the embedded providers have TLS")
	}
	const none = "RDMA-is-never-used"
	for name, test := range map[string]struct {
		relay, target, provider string
		transport               string // none if there is no session
		says                    string
	}{
		"both require it":         {"required", "required", "iwarp", "iwarp+tls", "encrypted between"},
		"the target requires it":  {"tls", "required", "iwarp", "iwarp+tls", "encrypted between"},
		"both want it":            {"tls", "tls", "iwarp", "iwarp+tls", "encrypted between"},
		"the relay does not":      {"off", "tls", "iwarp", "iwarp", "does not encrypt"},
		"the target does not":     {"tls", "off", "iwarp", "iwarp", "does not encrypt"},
		"required on one machine": {"required", "required", "auto", "shm", "stays on the machine"},
		"only the relay requires it": {"required", "off", "iwarp", none,
			"security.data is required at the relay and off at the target"},
		"only the target requires it": {"off", "required", "iwarp", none,
			"security.data is off at the relay and required at the target"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startTLSTarget(t, "--data-security", test.target, "--rdma-provider", test.provider)
			c.relay = c.startRelay("comch", append(tlsFlagsOf(c.ofRelay), "--data-security",
				test.relay, "--rdma-provider", test.provider, "--session-wait", "0s")...)
			if test.transport == none {
				c.relay.AwaitLog(test.says)
				c.target.AwaitLog(test.says)
				if p := c.initiator("info"); p.Wait() != 3 ||
					!strings.Contains(p.Stderr.String(), test.says) {
					t.Errorf("info says %q, want %q", p.Stderr.String(), test.says)
				}
				return
			}
			c.relay.AwaitLog("target is ready")
			info := c.mustRun("info")
			if !strings.Contains(info, "transport          "+test.transport+",") ||
				!strings.Contains(info, test.says) {
				t.Errorf("info says %s, want the transport %s, and %q", info, test.transport,
					test.says)
			}
			c.mustServe("comch")
		})
	}
}

func TestRequiredTLSNeedsAProviderThatHasItOrADeclaredNetwork(t *testing.T) {
	t.Parallel()
	c := startTLSTarget(t)
	check := func(flags ...string) (int, string) {
		p := spawn(t, "target", append(append([]string{"config", "dump", "--volume", "v=memory:1MiB",
			"--data-security", "required"}, tlsFlagsOf(c.ofTarget)...), flags...)...)
		return p.Wait(), p.Stderr.String()
	}
	code, says := check("--rdma-provider", "verbs")
	if code == 0 || !strings.Contains(says, "--fabric-security") {
		t.Errorf("verbs without a declared network: exit code %d, %s", code, says)
	}
	for _, flags := range [][]string{{"--rdma-provider", "verbs", "--fabric-security", "ipsec"}, {}} {
		if code, says := check(flags...); code != 0 {
			t.Errorf("%v: exit code %d, %s", flags, code, says)
		}
	}
}

// A reload makes a relay leave a target whose certificate has been revoked since, with data in
// flight, and come back to it when it has another one.
func TestARelayLeavesATargetThatItNoLongerAccepts(t *testing.T) {
	t.Parallel()
	c := startTLSTarget(t, "--data-security", "tls")
	revoked := filepath.Join(c.dir, "revoked.pem")
	stranger := c.authority.Write(filepath.Join(c.dir, "stranger"), []string{"stranger.test"})
	c.authority.Revoke(stranger.Certificate, revoked, time.Now().Add(time.Hour))
	c.relay = c.startRelay("comch", append(tlsFlagsOf(c.ofRelay), "--data-security", "tls",
		"--tls-revoked", revoked, "--metrics-listen", "127.0.0.1:0")...)
	const forever = "1000h"
	client := c.initiator(reconnectingVerify("--runtime", forever, "--reconnect-timeout", forever)...)
	c.awaitIO()
	c.authority.Revoke(c.ofTarget.Certificate, revoked, time.Now().Add(time.Hour))
	c.relay.Signal(syscall.SIGHUP)
	c.relay.AwaitLog("was revoked at")
	client.AwaitLog("session lost")

	c.authority.Write(filepath.Join(c.dir, "target"), []string{c.address.Addr().String()})
	c.awaitIO()
	interruptVerify(t, client)
}
