// SPDX-License-Identifier: Apache-2.0

package webconfig_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

const hash = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"

// write makes a directory with certificates and web.yaml, and returns the path of the latter.
func write(t *testing.T, content string) string {
	t.Helper()
	directory := t.TempDir()
	mutualtlstest.NewAuthority(t).Write(directory, []string{"127.0.0.1"})
	file := filepath.Join(directory, "web.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const secured = "tls_server_config:\n  cert_file: certificate.pem\n  key_file: key.pem\n"

func TestMistakesAreNamedByLineAndField(t *testing.T) {
	for content, want := range map[string]string{
		"tls_server_conf: {}":     `web.yaml:1: tls_server_conf: unknown key: did you mean "tls_server_config"?`,
		"- a":                     "web.yaml:1: must have keys and values",
		"a: b: c":                 "web.yaml:1: mapping values are not allowed",
		secured + "  min: TLS12":  "web.yaml:4: tls_server_config.min: unknown key",
		secured + secured:         "web.yaml:4: tls_server_config: is given twice",
		secured + "  key_file: x": "web.yaml:4: tls_server_config.key_file: is given twice",
		secured + "  min_version: TLS14": `web.yaml:4: tls_server_config.min_version: "TLS14" must be ` +
			"one of TLS10, TLS11, TLS12, TLS13",
		secured + "  min_version: TLS13\n  max_version: TLS12": "min_version: is later than max_version",
		secured + "  cipher_suites: [TLS_RC4]":                 `web.yaml:4: tls_server_config.cipher_suites: "TLS_RC4"`,
		secured + "  curve_preferences: [P1]":                  `curve_preferences: "P1" must be one of CurveP256`,
		secured + "  cipher_suites: TLS_AES":                   "web.yaml:4: tls_server_config.cipher_suites: must be a list",
		secured + "  curve_preferences: {X25519: 1}":           "tls_server_config.curve_preferences: must be a list",
		secured + "  cert: x":                                  "web.yaml:4: tls_server_config.cert: excludes cert_file",
		"tls_server_config:\n  cert_file: certificate.pem":     "tls_server_config.key_file: is missing",
		"tls_server_config:\n  key_file: key.pem":              "tls_server_config.cert_file: is missing",
		"tls_server_config:\n  cert_file: none.pem\n  key_file: key.pem": "web.yaml:2: " +
			"tls_server_config.cert_file: open ",
		"tls_server_config:\n  cert_file: certificate.pem\n  key_file: none.key": "web.yaml:3: " +
			"tls_server_config.key_file: open ",
		"tls_server_config:\n  cert_file: ca.pem\n  key_file: key.pem": "web.yaml:2: " +
			"tls_server_config.cert_file: certificate and key cannot be used together",
		secured + "  client_ca_file: ca.pem":                       "client_auth_type: is missing",
		secured + "  client_auth_type: Some":                       `web.yaml:4: tls_server_config.client_auth_type: "Some"`,
		secured + "  client_auth_type: RequireAndVerifyClientCert": "client_ca_file: is missing",
		secured + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: key.pem": "web.yaml:5: " +
			"tls_server_config.client_ca_file: ",
		secured + "  client_allowed_sans: [a]":                "client_allowed_sans: proves nothing",
		"basic_auth_users:\n  a: " + hash + "\n  b: pw":       "web.yaml:3: basic_auth_users.b: is no bcrypt hash",
		"basic_auth_users:\n  a: $2y$31" + hash[6:]:           "web.yaml:2: basic_auth_users.a: has the cost 31",
		"http_server_config:\n  http2: maybe":                 `web.yaml:2: http_server_config.http2: "maybe"`,
		"http_server_config: {headers: {Server: x}}":          "headers.Server: cannot be set",
		"http_server_config: {headers: {X-Frame-Options: x}}": `"x" must be one of deny, sameorigin`,
		"rate_limit: {burst: -1}":                             "web.yaml:1: rate_limit.burst: ",
		"rate_limit: {interval: 1s}":                          "rate_limit.burst: is missing",
	} {
		_, err := webconfig.Read(write(t, content))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	if _, err := webconfig.Read("/nonexistent/web.yaml"); err == nil ||
		!strings.Contains(err.Error(), "/nonexistent/web.yaml") {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestFilesOfTheToolkitAreRead(t *testing.T) {
	for content, isPublic := range map[string]bool{
		"": true, "# nothing\n": true, "http_server_config:\n  http2: false\n": true,
		"tls_server_config:\nbasic_auth_users:\n": true,
		"basic_auth_users: {a: " + hash + "}":     false,
		secured + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n" +
			"  min_version: TLS13\n  prefer_server_cipher_suites: true\n" +
			"  curve_preferences: [X25519]\n  client_allowed_sans: [prometheus]\n" +
			"  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n" +
			"rate_limit: {interval: 1s, burst: 20}\n" +
			"http_server_config:\n  headers:\n    X-Frame-Options: deny\n": false,
	} {
		c, err := webconfig.Read(write(t, content))
		if err != nil || c.IsPublic() != isPublic {
			t.Errorf("%q: %v", content, err)
			continue
		}
		if secure := c.TLS(); (secure != nil) != c.HasTLS() {
			t.Errorf("%q: TLS is %v", content, secure)
		}
	}
}

func TestAKeyThatOthersCanReadIsAWarning(t *testing.T) {
	file := write(t, secured)
	key := filepath.Join(filepath.Dir(file), "key.pem")
	for mode, want := range map[os.FileMode]int{0o600: 0, 0o640: 0, 0o644: 1} {
		if err := os.Chmod(key, mode); err != nil {
			t.Fatal(err)
		}
		c, err := webconfig.Read(file)
		if err != nil || len(c.Warnings()) != want {
			t.Errorf("%#o: %v, %v", mode, c.Warnings(), err)
		}
		for _, w := range c.Warnings() {
			if want := "web.yaml:3: tls_server_config.key_file: every user"; !strings.Contains(
				w.String(), want) {
				t.Errorf("%v", w)
			}
		}
	}
}

func TestAFileThatIsWrongLeavesTheFormerContentInUse(t *testing.T) {
	file := write(t, "basic_auth_users: {a: "+hash+"}")
	f, err := webconfig.Load(file, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("basic_auth_users: {a: x}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Reload(); err == nil || f.Current().Users["a"] != hash {
		t.Errorf("error %v, users %v", err, f.Current().Users)
	}
}

// A certificate that is renewed in place is used at the next connection, and one that cannot be
// read is not.
func TestACertificateIsRenewedInPlace(t *testing.T) {
	file := write(t, secured)
	directory := filepath.Dir(file)
	core, logs := observer.New(zap.ErrorLevel)
	f, err := webconfig.Load(file, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	current := func() string {
		certificate, err := f.TLS().GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		return certificate.Leaf.SerialNumber.String()
	}
	first := current()
	mutualtlstest.NewAuthority(t).Write(directory, []string{"127.0.0.1"})
	second := current()
	if second == first {
		t.Error("the renewed certificate is not used")
	}
	if err := os.WriteFile(filepath.Join(directory, "certificate.pem"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if now := current(); now != second {
			t.Errorf("the certificate is %s", now)
		}
	}
	if logs.Len() != 1 {
		t.Errorf("a broken certificate: %d lines are logged", logs.Len())
	}
}
