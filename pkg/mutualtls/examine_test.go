// SPDX-License-Identifier: Apache-2.0

package mutualtls_test

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// An authority that signs again with the same key stays; another one does not.
func TestAPeerWhoseAuthorityIsGoneIsNoLongerAccepted(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	own := authority.Write(t.TempDir(), []string{"own.test"})
	c, err := mutualtls.Load(own, nil)
	if err != nil {
		t.Fatal(err)
	}
	peer := authority.Write(t.TempDir(), []string{"peer.test"})
	chain := append(certificatesOf(t, peer.Certificate), certificatesOf(t, peer.CA)...)
	check := func() error { return c.CheckPeer([][]*x509.Certificate{chain}, nil) }
	if err := check(); err != nil {
		t.Errorf("while the authority is there: %v", err)
	}
	replaceCA := func(by *mutualtlstest.Authority) {
		other := by.Write(t.TempDir(), nil)
		content, err := os.ReadFile(other.CA)
		if err == nil {
			err = os.WriteFile(own.CA, content, 0o600)
		}
		if err == nil {
			err = c.Reload()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	replaceCA(authority.Forge()) // its name is the same, its key is not
	if err := check(); !errors.Is(err, status.Authentication) {
		t.Errorf("with a forged authority: %v", err)
	}
	replaceCA(mutualtlstest.NewAuthority(t))
	if err := check(); !errors.Is(err, status.Authentication) {
		t.Errorf("with another authority: %v", err)
	}
	replaceCA(authority)
	if err := check(); err != nil {
		t.Errorf("when the authority is back: %v", err)
	}
}

func certificatesOf(t *testing.T, path string) []*x509.Certificate {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := mutualtls.ParseCertificates(b)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What makes a certificate useless is said when it is loaded, and not first by its peers.
func TestProblemsOfTheOwnFilesAreSaid(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	onlyFor := func(usage x509.ExtKeyUsage) mutualtlstest.Option {
		return func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{usage} }
	}
	for name, test := range map[string]struct {
		names   []string
		options []mutualtlstest.Option
		usage   x509.ExtKeyUsage
		want    string // in the only problem; "" for none
	}{
		"for both":              {[]string{"a.test"}, nil, x509.ExtKeyUsageServerAuth, ""},
		"client without a name": {nil, nil, x509.ExtKeyUsageClientAuth, ""},
		"server without a name": {nil, nil, x509.ExtKeyUsageServerAuth,
			"no subject alternative name"},
		"server with the usage of a client": {[]string{"a.test"},
			[]mutualtlstest.Option{onlyFor(x509.ExtKeyUsageClientAuth)},
			x509.ExtKeyUsageServerAuth, "lacks the extended key usage serverAuth"},
		"client with the usage of a server": {[]string{"a.test"},
			[]mutualtlstest.Option{onlyFor(x509.ExtKeyUsageServerAuth)},
			x509.ExtKeyUsageClientAuth, "lacks the extended key usage clientAuth"},
	} {
		t.Run(name, func(t *testing.T) {
			files := authority.Write(t.TempDir(), test.names, test.options...)
			files.Usage = test.usage
			checkProblems(t, files, test.want)
		})
	}
	t.Run("a peer's certificate in place of an authority", func(t *testing.T) {
		files := authority.Write(t.TempDir(), []string{"a.test"})
		files.CA = authority.Write(t.TempDir(), []string{"b.test"}).Certificate
		checkProblems(t, files, "which is no authority")
	})
}

func checkProblems(t *testing.T, files mutualtls.Files, want string) {
	t.Helper()
	core, logged := observer.New(zap.WarnLevel)
	c, err := mutualtls.Load(files, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	problems := c.Problems()
	if want == "" && len(problems) > 0 {
		t.Errorf("problems: %q", problems)
	}
	if want != "" && (len(problems) != 1 || !strings.Contains(problems[0], want) ||
		logged.FilterMessage(problems[0]).Len() != 1) {
		t.Errorf("problems: %q, logged %v, want %q", problems, logged.All(), want)
	}
}

func TestFilesInTheWrongFormAreExplained(t *testing.T) {
	files := mutualtlstest.NewAuthority(t).Write(t.TempDir(), []string{"a.test"})
	write := func(content string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certificate := certificatesOf(t, files.Certificate)[0]
	for name, test := range map[string]struct {
		change func(*mutualtls.Files)
		want   string
	}{
		"an encrypted key": {func(f *mutualtls.Files) {
			f.Key = write("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
		}, "openssl pkey"},
		"a certificate in DER format": {func(f *mutualtls.Files) {
			f.Certificate = write(string(certificate.Raw))
		}, "-inform der"},
		"an empty list of revoked certificates": {func(f *mutualtls.Files) {
			f.Revoked = write("\n")
		}, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := files
			test.change(&changed)
			if _, err := mutualtls.Load(changed, nil); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("Load: %v, want %q", err, test.want)
			}
		})
	}
	for content, want := range map[string]string{
		string(certificate.Raw): "-inform der",
		"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n": "but a PRIVATE KEY",
		"": "no certificate in PEM format",
	} {
		if _, err := mutualtls.ParseCertificates([]byte(content)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("ParseCertificates: %v, want %q", err, want)
		}
	}
}
