// SPDX-License-Identifier: Apache-2.0

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
	"fmt"
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
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageCertSign|x509.KeyUsageCRLSign, nil
	a.certificate = sign(t, template, template, a.key.Public(), a.key)
	return a
}

// Names parses names of certificates. It panics if a text is none.
func Names(texts ...string) []mutualtls.Name {
	var names []mutualtls.Name
	for _, text := range texts {
		name, err := mutualtls.ParseName(text)
		if err != nil {
			panic(fmt.Sprintf("%q %v", text, err))
		}
		names = append(names, name)
	}
	return names
}

// Name parses one name.
func Name(text string) mutualtls.Name { return Names(text)[0] }

// Forge returns an authority with the same name, and a key of its own.
func (a *Authority) Forge() *Authority {
	a.t.Helper()
	forger := &Authority{t: a.t, newKey: a.newKey}
	forger.key = forger.makeKey()
	template := *a.certificate
	template.PublicKey = nil
	forger.certificate = sign(a.t, &template, &template, forger.key.Public(), forger.key)
	return forger
}

// Revoke writes the list of what the authority has revoked, in PEM format, over a file. It lists
// the certificate in a file of Write, and is to be renewed by next.
func (a *Authority) Revoke(certificate, path string, next time.Time) {
	a.t.Helper()
	encoded, err := os.ReadFile(certificate)
	if err != nil {
		a.t.Fatal(err)
	}
	block, _ := pem.Decode(encoded)
	revoked, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		a.t.Fatal(err)
	}
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: next.Add(-48 * time.Hour), NextUpdate: next,
		RevokedCertificateEntries: []x509.RevocationListEntry{
			{SerialNumber: revoked.SerialNumber, RevocationTime: time.Now()}},
	}, a.certificate, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(path, "X509 CRL", list)
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
