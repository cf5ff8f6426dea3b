// Package mutualtlstest issues certificates for tests.
package mutualtlstest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
)

// Authority signs certificates.
type Authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         crypto.Signer
	newKey      func() (crypto.Signer, error)
}

// NewAuthority returns a new, self-signed authority. All keys are of ECDSA P-256.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	return NewAuthorityWithKeys(t, func() (crypto.Signer, error) {
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	})
}

// NewAuthorityWithKeys is NewAuthority with keys of another kind, which newKey makes.
func NewAuthorityWithKeys(t testing.TB, newKey func() (crypto.Signer, error)) *Authority {
	t.Helper()
	a := &Authority{t: t, newKey: newKey}
	a.key = a.makeKey()
	template := template("authority " + rand.Text())
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageCertSign, nil
	a.certificate = sign(t, template, template, a.key.Public(), a.key)
	return a
}

// Option changes a certificate before it is signed.
type Option func(*x509.Certificate)

// Expired sets the expiry of the certificate to an hour ago.
func Expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }

// Until sets the expiry of the certificate.
func Until(end time.Time) Option { return func(c *x509.Certificate) { c.NotAfter = end } }

// Write writes certificate.pem, key.pem and ca.pem to dir, with a new certificate from a for the
// given names: IP addresses and DNS names. It replaces each existing file atomically.
func (a *Authority) Write(dir string, names []string, options ...Option) mutualtls.Files {
	a.t.Helper()
	template := template("peer")
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	for _, option := range options {
		option(template)
	}
	key := a.makeKey()
	certificate := sign(a.t, template, a.certificate, key.Public(), a.key)
	encodedKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		a.t.Fatal(err)
	}
	files := mutualtls.Files{
		Certificate: filepath.Join(dir, "certificate.pem"), Key: filepath.Join(dir, "key.pem"),
		CA: filepath.Join(dir, "ca.pem"),
	}
	a.write(files.Certificate, "CERTIFICATE", certificate.Raw)
	a.write(files.Key, "PRIVATE KEY", encodedKey)
	a.write(files.CA, "CERTIFICATE", a.certificate.Raw)
	return files
}

func (a *Authority) write(path, kind string, der []byte) {
	a.t.Helper()
	temporary := path + ".new"
	encoded := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(temporary, encoded, 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		a.t.Fatal(err)
	}
}

func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(365 * 24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func (a *Authority) makeKey() crypto.Signer {
	a.t.Helper()
	key, err := a.newKey()
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func sign(
	t testing.TB, template, parent *x509.Certificate,
	public crypto.PublicKey, key crypto.Signer,
) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
