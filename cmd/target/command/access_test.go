// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// access runs the command on a configuration of two volumes.
func access(t *testing.T, own mutualtls.Files, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "target.yaml")
	content := `
tls: {certificate: ` + own.Certificate + `, key: ` + own.Key + `, ca: ` + own.CA + `}
listen: {tls_allowed_names: [dpu-1.test, dpu-2.test]}
volumes:
- {name: a, backend: "memory:1MiB", readers: [dpu-1.test], owners: [dpu-2.test, dpu-9.test]}
- {name: b, backend: "memory:1MiB"}
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := newAccessCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{"--config", file, "--tls-revoked", own.Revoked}, args...))
	err := cmd.ExecuteContext(t.Context())
	return strings.Join(strings.Fields(out.String()), " "), err
}

func TestAccessShowsWhatTheConfigurationGrants(t *testing.T) {
	own := mutualtlstest.NewAuthority(t).Write(t.TempDir(), []string{"target.test"})
	got, err := access(t, own)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"certificate for dns:target.test expires",
		"dns:dpu-1.test yes a (read), b (preempt)",
		"dns:dpu-2.test yes a (own), b (preempt)",
		"dns:dpu-9.test no listen.tls_allowed_names does not have it",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("access says %q, want %q in it", got, want)
		}
	}
}

// TestAccessExaminesCertificatesAsTheTargetDoes tries certificates for each reason to reject one.
func TestAccessExaminesCertificatesAsTheTargetDoes(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	own := authority.Write(t.TempDir(), []string{"target.test"})
	issue := func(by *mutualtlstest.Authority, names []string,
		options ...mutualtlstest.Option) string {
		return by.Write(t.TempDir(), names, options...).Certificate
	}
	revoked := issue(authority, []string{"dpu-1.test"})
	own.Revoked = filepath.Join(t.TempDir(), "revoked.pem")
	authority.Revoke(revoked, own.Revoked, time.Now().Add(time.Hour))
	for name, test := range map[string]struct {
		certificate, says string
		isRejected        bool
	}{
		"allowed": {issue(authority, []string{"dpu-2.test"}), "yes a (own), b (preempt)", false},
		"of another name": {issue(authority, []string{"dpu-3.test"}),
			"no the peer's certificate is for [\"dns:dpu-3.test\"], none of which is an allowed", true},
		"of another authority": {issue(mutualtlstest.NewAuthority(t), []string{"dpu-1.test"}),
			"no x509: certificate signed by unknown authority", true},
		"expired": {issue(authority, []string{"dpu-1.test"}, mutualtlstest.Expired),
			"no x509: certificate has expired", true},
		"revoked": {revoked, "was revoked at", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := access(t, own, test.certificate)
			if !strings.Contains(got, test.says) || (err != nil) != test.isRejected {
				t.Errorf("access says %q, %v, want %q", got, err, test.says)
			}
		})
	}
	document, _ := access(t, own, revoked, "--output", "json")
	document, _, _ = strings.Cut(document, " Error:")
	s := schematest.Read(t, "../../../docs/schemas/access.schema.json")
	var parsed any
	if err := json.Unmarshal([]byte(document), &parsed); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(parsed); err != nil {
		t.Error(err)
	}
	if _, err := access(t, own, filepath.Join(t.TempDir(), "missing.pem")); err == nil {
		t.Error("a certificate that does not exist is no error")
	}
}
