// SPDX-License-Identifier: Apache-2.0

package mutualtls_test

import (
	"crypto/x509"
	"errors"
	"os"
	"testing"

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
