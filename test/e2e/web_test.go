// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// A listener for metrics with TLS and users serves whoever has the password, and probes. A reload
// reads the file again.
func TestMetricsAreServedAsTheWebConfigurationFileSays(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	mutualtlstest.NewAuthority(t).Write(directory, []string{"127.0.0.1"})
	file := filepath.Join(directory, "web.yaml")
	write := func(password string) {
		t.Helper()
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		content := fmt.Sprintf("tls_server_config: {cert_file: certificate.pem, key_file: key.pem, "+
			"min_version: TLS13}\nbasic_auth_users: {prometheus: %q}\n", hash)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:1MiB"},
		address: listenAddress(t)}
	c.startTarget("--metrics-listen", "127.0.0.1:0", "--web-config-file", file)
	base := "https://" + opsAddress(t, c.target)
	pem, err := os.ReadFile(filepath.Join(directory, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(pem)
	client := func(latest uint16) *http.Client {
		return &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{RootCAs: authorities, MaxVersion: latest}}}
	}
	request := func(path, password string) int {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if password != "" {
			r.SetBasicAuth("prometheus", password)
		}
		response, err := client(0).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for _, r := range []struct {
		path, password string
		want           int
	}{
		{"/metrics", "", 401}, {"/metrics", "first", 200}, {"/metrics", "second", 401},
		{"/status", "", 401}, {"/healthz", "", 200}, {"/readyz", "", 200},
	} {
		if code := request(r.path, r.password); code != r.want {
			t.Errorf("%s with password %q: %d", r.path, r.password, code)
		}
	}
	if _, err := client(tls.VersionTLS12).Get(base + "/healthz"); err == nil ||
		!strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	write("second")
	c.target.Signal(syscall.SIGHUP)
	testkit.Eventually(t, "the reload has read the file", func() bool {
		return request("/metrics", "second") == 200 && request("/metrics", "first") == 401
	})
	if err := os.WriteFile(file, []byte("basic_auth_users: {prometheus: x}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog("web.yaml:1: basic_auth_users.prometheus: is no bcrypt hash")
	if code := request("/metrics", "second"); code != 200 {
		t.Errorf("after a reload that failed: %d", code)
	}
}

// An administrator at a port proves it by a token.
func TestAdministrationAtAPortNeedsTheToken(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:1MiB"},
		address: listenAddress(t)}
	token, wrong := filepath.Join(c.dir, "token"), filepath.Join(c.dir, "wrong")
	for file, text := range map[string]string{token: strings.Repeat("a", 32) + "\n",
		wrong: strings.Repeat("b", 32) + "\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.startTarget("--admin-listen", "127.0.0.1:0", "--admin-token-file", token)
	c.target.AwaitLog("serving administration")
	_, rest, _ := strings.Cut(c.target.Stderr.String(), "serving administration")
	_, rest, _ = strings.Cut(rest, `"address": "`)
	address, _, _ := strings.Cut(rest, `"`)
	for _, r := range []struct {
		flags []string
		want  int
	}{
		{[]string{"--admin-token-file", token}, 0}, {[]string{"--admin-token-file", wrong}, 3},
		{nil, 3},
	} {
		p := spawn(t, "target", append([]string{"status", "--admin", address}, r.flags...)...)
		if code := p.Wait(); code != r.want {
			t.Errorf("status with %v exited with %d", r.flags, code)
		}
	}
	if err := os.WriteFile(token, []byte(strings.Repeat("b", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.target.Signal(syscall.SIGHUP)
	testkit.Eventually(t, "the reload has read the token", func() bool {
		return spawn(t, "target", "status", "--admin", address, "--admin-token-file",
			wrong).Wait() == 0
	})
	// Without TLS, whoever is on the machine can be a relay.
	if !c.target.HasLogged("every user of this machine can open the volumes") {
		t.Error("the target does not say whom a loopback address lets in")
	}
}
