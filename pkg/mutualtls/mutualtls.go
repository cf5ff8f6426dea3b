// Package mutualtls lets relay and target prove their identity to each other: it loads a
// certificate with its key and the authorities whose certificates a peer may have, and builds TLS
// configurations from them.
//
// Every new connection checks the files, so that a certificate renewed in place is used from then
// on, without a signal. Existing connections are not affected.
package mutualtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Protocol is the name (ALPN, RFC 7301) of the protocol inside TLS. A certificate that is valid for
// another service of the same machine must not lead that service's clients here.
const Protocol = "zc-relay-control"

const (
	// maxFileSize bounds each file in bytes. The largest bundle of authorities in common use is a
	// quarter of it.
	maxFileSize = 1 << 20
	// expiryWarning is how long before its expiry a certificate causes a warning. Automatic renewal
	// has replaced it by then.
	expiryWarning = 7 * 24 * time.Hour
)

// Files names the PEM files of one side. All are required.
type Files struct {
	// Certificate holds this side's certificate, followed by those between it and the authority
	// that the peer trusts.
	Certificate string
	// Key holds the private key of the certificate.
	Key string
	// CA holds the authorities that may sign the peer's certificate.
	CA string
}

// Credentials is the content of Files, kept up to date. Its methods may be called concurrently.
type Credentials struct {
	files Files
	log   *zap.Logger

	mu       sync.Mutex // guards what follows
	content  content
	rejected stamps // of files that could not be used, so that each change is logged once
}

// content is what the files held when they had these stamps.
type content struct {
	stamps      stamps
	certificate tls.Certificate
	authorities *x509.CertPool
}

// Load reads the files. It logs this and every later change to log, which may be nil.
func Load(files Files, log *zap.Logger) (*Credentials, error) {
	if log == nil {
		log = zap.NewNop()
	}
	c := &Credentials{files: files, log: log}
	if err := c.Reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// Reload reads the files even if they seem unchanged. If they cannot be used, their former content
// stays in use.
func (c *Credentials) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reload()
}

func (c *Credentials) reload() error {
	read, err := readContent(c.files)
	if err != nil {
		return err
	}
	c.content, c.rejected = read, stamps{}
	leaf, now := read.certificate.Leaf, time.Now()
	c.log.Info("loaded TLS certificate", zap.String("certificate", c.files.Certificate),
		zap.Strings("names", namesOf(leaf)),
		zap.Time("not_after", leaf.NotAfter), zap.String("authorities", c.files.CA))
	log, expiry := c.log.With(zap.String("certificate", c.files.Certificate)),
		zap.Time("not_after", leaf.NotAfter)
	switch {
	case now.Before(leaf.NotBefore):
		log.Warn("TLS certificate is not valid yet: peers reject it",
			zap.Time("not_before", leaf.NotBefore))
	case now.After(leaf.NotAfter):
		log.Warn("TLS certificate has expired: peers reject it; renew it in place", expiry)
	case now.Add(expiryWarning).After(leaf.NotAfter):
		log.Warn("TLS certificate expires soon; renew it in place", expiry)
	}
	return nil
}

// current returns what the files hold now, or their former content if that cannot be used.
func (c *Credentials) current() content {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := stampsOf(c.files)
	if err == nil && (now.equal(c.content.stamps) || now.equal(c.rejected)) {
		return c.content
	}
	if err == nil {
		err = c.reload()
	}
	if err != nil && !now.equal(c.rejected) {
		c.rejected = now
		c.log.Warn("changed TLS files cannot be used; their former content stays in use",
			zap.Error(err))
	}
	return c.content
}

// NotAfter returns when this side's certificate expires.
func (c *Credentials) NotAfter() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.content.certificate.Leaf.NotAfter
}

// Client returns the configuration for a connection to a target. The target's certificate must be
// for serverName, a DNS name or an IP address.
func (c *Credentials) Client(serverName string) *tls.Config {
	now := c.current()
	config := now.config()
	config.RootCAs, config.ServerName = now.authorities, serverName
	return config
}

// Server returns the configuration for a connection of a relay. The relay's certificate must come
// from one of the authorities. Unless allowedNames is empty, it must also be for one of these
// names: DNS names, URIs or IP addresses, which are compared as a whole.
func (c *Credentials) Server(allowedNames []string) *tls.Config {
	now := c.current()
	config := now.config()
	config.ClientCAs, config.ClientAuth = now.authorities, tls.RequireAndVerifyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := checkProtocol(state); err != nil {
			return err
		}
		return checkName(state.PeerCertificates[0], allowedNames)
	}
	return config
}

// config returns the part of the configuration that both sides share.
func (c *content) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{c.certificate}, NextProtos: []string{Protocol},
		// Every connection must show a certificate: a ticket would outlive its validity.
		SessionTicketsDisabled: true,
		VerifyConnection:       checkProtocol,
	}
}

func checkProtocol(state tls.ConnectionState) error {
	if state.NegotiatedProtocol != Protocol {
		return fmt.Errorf("the peer did not negotiate the protocol %q (ALPN)", Protocol)
	}
	return nil
}

func checkName(leaf *x509.Certificate, allowed []string) error {
	if len(allowed) == 0 {
		return nil
	}
	names := namesOf(leaf)
	for _, name := range names {
		for _, good := range allowed {
			if strings.EqualFold(name, good) {
				return nil
			}
		}
	}
	return status.Errorf(status.Authentication,
		"the peer's certificate is for %q, which is none of the allowed names", names)
}

// namesOf returns the names that a certificate is for. The subject's common name is not one of them
// (RFC 6125).
func namesOf(leaf *x509.Certificate) []string {
	names := append([]string{}, leaf.DNSNames...)
	for _, uri := range leaf.URIs {
		names = append(names, uri.String())
	}
	for _, address := range leaf.IPAddresses {
		names = append(names, address.String())
	}
	return names
}

func readContent(files Files) (content, error) {
	// Stamps first: a file that changes while it is read will be read again.
	stamps, err := stampsOf(files)
	if err != nil {
		return content{}, err
	}
	certificate, err := readFile("certificate", files.Certificate)
	if err != nil {
		return content{}, err
	}
	key, err := readFile("key", files.Key)
	if err != nil {
		return content{}, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return content{}, status.Errorf(status.BadConfig, "TLS certificate %q with key %q: %w",
			files.Certificate, files.Key, err)
	}
	authorities, err := readFile("CA", files.CA)
	if err != nil {
		return content{}, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return content{}, status.Errorf(status.BadConfig, "TLS CA %q holds no certificate in PEM",
			files.CA)
	}
	return content{stamps: stamps, certificate: pair, authorities: pool}, nil
}

func readFile(what, path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, status.Errorf(status.BadConfig, "TLS %s: %w", what, err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return nil, status.Errorf(status.BadConfig, "TLS %s: %w", what, err)
	}
	if len(b) > maxFileSize {
		return nil, status.Errorf(status.BadConfig, "TLS %s %q exceeds %d bytes",
			what, path, maxFileSize)
	}
	return b, nil
}

// stamps identifies the versions of the three files; nil elements identify none.
type stamps [3]os.FileInfo

func stampsOf(files Files) (stamps, error) {
	var s stamps
	var errs []error
	for i, path := range []string{files.Certificate, files.Key, files.CA} {
		var err error
		if s[i], err = os.Stat(path); err != nil {
			errs = append(errs, status.Errorf(status.BadConfig, "TLS file: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return stamps{}, fmt.Errorf("examine the TLS files: %w", err)
	}
	return s, nil
}

// equal reports whether nothing has changed. The identity of a file shows a replacement within the
// resolution of its times.
func (s stamps) equal(other stamps) bool {
	for i, a := range s {
		b := other[i]
		if a == nil || b == nil {
			if a != b {
				return false
			}
			continue
		}
		if !os.SameFile(a, b) || a.Size() != b.Size() || !a.ModTime().Equal(b.ModTime()) {
			return false
		}
	}
	return true
}
