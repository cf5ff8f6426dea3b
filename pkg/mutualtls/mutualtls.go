// SPDX-License-Identifier: Apache-2.0

// Package mutualtls lets relay and target prove their identity to each other. It loads a
// certificate with its key, and the authorities that may sign a peer's certificate, and builds TLS
// configurations from them.
//
// Every new connection checks the files, so that it uses a certificate that was renewed in place,
// without a signal. Existing connections are not affected.
package mutualtls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Protocol is the name (ALPN, RFC 7301) of the protocol inside TLS. It prevents clients of another
// service from being redirected here if one certificate is valid for both services.
const Protocol = "zc-relay-control"

// DataProtocol is the name of the protocol inside the TLS of RDMA connections.
const DataProtocol = "zc-relay-data"

const (
	// maxFileSize bounds each file in bytes. The largest bundle of authorities in common use is a
	// quarter of that size.
	maxFileSize = 1 << 20
	// expiryWarning is how long before its expiry a certificate causes a warning. Automatic renewal
	// should have replaced the certificate by then.
	expiryWarning = 7 * 24 * time.Hour
)

// Files names the PEM files of one side. Certificate, Key, and CA are required.
type Files struct {
	// Certificate holds this side's certificate, followed by the intermediate certificates up to
	// the authority that the peer trusts.
	Certificate string
	// Key holds the private key of the certificate.
	Key string
	// CA holds the authorities that may sign the peer's certificate.
	CA string
	// Revoked, unless it is "", holds the authorities' lists of certificates that they have revoked.
	Revoked string
	// Usage is what the certificate is used for, x509.ExtKeyUsageServerAuth or ClientAuth: see
	// Credentials.Problems. Its zero value is any usage.
	Usage x509.ExtKeyUsage
}

// Credentials holds the content of Files and keeps it up to date. Its methods may be called
// concurrently.
type Credentials struct {
	files Files
	log   *zap.Logger

	// reading is held while files are read. It is a channel because a read may block for ever, on a
	// file system that does not respond, and others must not wait with it.
	reading chan struct{}

	mu       sync.Mutex // guards the fields below
	since    time.Time  // when the read in progress began; zero if there is none
	reported bool       // the read in progress is known to be blocked
	content  content
	rejected *stamps // the versions that could not be used last, so that they are logged once
}

// content holds the content of the files in the versions that stamps identifies.
type content struct {
	stamps      stamps
	certificate tls.Certificate
	authorities *x509.CertPool
	issuers     []*x509.Certificate // the authorities
	revoked     revocations
}

// Load reads the files. It logs the certificate, and every later change of the files, to log, which
// may be nil.
func Load(files Files, log *zap.Logger) (*Credentials, error) {
	if log == nil {
		log = zap.NewNop()
	}
	c := &Credentials{files: files, log: log, reading: make(chan struct{}, 1)}
	if err := c.Reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// Reload reads the files even if they seem unchanged. If they cannot be used, their former content
// stays in use. Reload blocks while the file system does.
func (c *Credentials) Reload() error {
	c.reading <- struct{}{}
	end := c.beginRead()
	defer end()
	return c.reload()
}

// reload reads the files. The caller holds reading.
func (c *Credentials) reload() error {
	read, err := readContent(c.files)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.content, c.rejected = read, nil
	c.mu.Unlock()
	leaf, now := read.certificate.Leaf, time.Now()
	c.log.Info("loaded TLS certificate", zap.String("certificate", c.files.Certificate),
		zap.Strings("names", texts(Names(leaf))),
		zap.Time("not_after", leaf.NotAfter), zap.String("authorities", c.files.CA))
	log, expiry := c.log.With(zap.String("certificate", c.files.Certificate)),
		zap.Time("not_after", leaf.NotAfter)
	if mode := read.stamps[keyStamp].Mode(); files.IsExposed(mode) {
		c.log.Warn("the private key of the TLS certificate is not private: chmod 0640 or less",
			zap.String("key", c.files.Key), zap.Stringer("mode", mode.Perm()))
	}
	read.revoked.warn(c.log, now)
	for _, problem := range read.problems(c.files.Usage) {
		c.log.Warn(problem, zap.String("certificate", c.files.Certificate),
			zap.String("authorities", c.files.CA))
	}
	switch {
	case now.Before(leaf.NotBefore):
		log.Warn("TLS certificate is not valid yet: peers will reject it",
			zap.Time("not_before", leaf.NotBefore))
	case now.After(leaf.NotAfter):
		log.Warn("TLS certificate has expired: peers will reject it; renew it in place", expiry)
	case now.Add(expiryWarning).After(leaf.NotAfter):
		log.Warn("TLS certificate expires soon; renew it in place", expiry)
	}
	return nil
}

// current returns the current content of the files, or the former content if the current one cannot
// be used or cannot be read in time.
func (c *Credentials) current() content {
	c.check()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.content
}

// checkTimeout is how long a connection waits for the check of the files.
const checkTimeout = time.Second

// check reads the files if they have changed. If the file system blocks, check does not wait for it
// longer than checkTimeout, and not at all if an earlier read has already blocked for as long; one
// goroutine waits until the read ends.
func (c *Credentials) check() {
	c.mu.Lock()
	isBlocked := !c.since.IsZero() && time.Since(c.since) >= checkTimeout
	c.mu.Unlock()
	if isBlocked {
		c.reportBlocked()
		return
	}
	late := time.NewTimer(checkTimeout)
	defer late.Stop()
	checked := make(chan struct{})
	select {
	case c.reading <- struct{}{}:
		end := c.beginRead()
		go func() {
			defer close(checked)
			defer end()
			c.readChanged()
		}()
	case <-late.C:
		c.reportBlocked()
		return
	}
	select {
	case <-checked:
	case <-late.C:
		c.reportBlocked()
	}
}

// beginRead records that a read is in progress. The caller holds reading, which the returned
// function gives back.
func (c *Credentials) beginRead() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.since, c.reported = time.Time{}, false
		<-c.reading
	}
}

// reportBlocked logs, once for each read, that it is blocked.
func (c *Credentials) reportBlocked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() || c.reported {
		return
	}
	c.reported = true
	c.log.Warn("TLS files cannot be read, their file system does not respond: their former content stays in use (stat the files to check)",
		zap.String("certificate", c.files.Certificate), zap.String("key", c.files.Key),
		zap.String("authorities", c.files.CA), zap.String("revoked", c.files.Revoked),
		zap.Duration("after", time.Since(c.since)))
}

// readChanged reads the files if they have changed. The caller holds reading.
func (c *Credentials) readChanged() {
	now, err := stampsOf(c.files)
	c.mu.Lock()
	isRejected := c.rejected != nil && now.equal(*c.rejected)
	isCurrent := err == nil && now.equal(c.content.stamps)
	c.mu.Unlock()
	if isRejected || isCurrent {
		return
	}
	if err == nil {
		err = c.reload()
	}
	if err != nil {
		c.mu.Lock()
		c.rejected = &now
		c.mu.Unlock()
		c.log.Warn("changed TLS files cannot be used; their former content stays in use",
			zap.Error(err))
	}
}

// NotAfter returns when the certificate expires that this side's next connection will have. Like a
// connection, it reads the files if they have changed.
func (c *Credentials) NotAfter() time.Time { return c.current().certificate.Leaf.NotAfter }

// Client returns the configuration for a connection to a target. The target's certificate must be
// valid for serverName, a DNS name or an IP address.
func (c *Credentials) Client(serverName string) *tls.Config {
	return c.client(Protocol, serverName)
}

// DataClient is Client for an RDMA connection.
func (c *Credentials) DataClient(serverName string) *tls.Config {
	return c.client(DataProtocol, serverName)
}

func (c *Credentials) client(protocol, serverName string) *tls.Config {
	now := c.current()
	config := now.config()
	config.NextProtos = []string{protocol}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return errors.Join(checkProtocol(state, protocol), now.checkPeer(state.VerifiedChains, nil))
	}
	config.RootCAs, config.ServerName = now.authorities, serverName
	// By default a certificate of an authority that the target does not name would not be sent, and
	// the target could not say whose it rejects.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &now.certificate, nil
	}
	return config
}

// Server returns the configuration for a connection from a relay. One of the authorities must have
// signed the relay's certificate. Unless allowed is empty, the certificate must also contain one of
// these names.
func (c *Credentials) Server(allowed []Name) *tls.Config { return c.server(Protocol, allowed) }

// DataServer is Server for an RDMA connection.
func (c *Credentials) DataServer(allowed []Name) *tls.Config {
	return c.server(DataProtocol, allowed)
}

func (c *Credentials) server(protocol string, allowed []Name) *tls.Config {
	config := c.ServerWithoutProtocol(allowed)
	config.NextProtos = []string{protocol}
	checkPeer := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := checkProtocol(state, protocol); err != nil {
			return err
		}
		return checkPeer(state)
	}
	return config
}

// ServerWithoutProtocol returns the configuration that Server returns, for a service whose clients
// do not negotiate a protocol (ALPN).
func (c *Credentials) ServerWithoutProtocol(allowed []Name) *tls.Config {
	now := c.current()
	config := now.config()
	config.ClientCAs, config.ClientAuth = now.authorities, tls.RequireAndVerifyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return now.checkPeer(state.VerifiedChains, allowed)
	}
	return config
}

// config returns the part of the configuration that all connections share.
func (c *content) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{c.certificate},
		// Every connection must present a certificate, because a ticket could outlive it.
		SessionTicketsDisabled: true,
	}
}

func checkProtocol(state tls.ConnectionState, protocol string) error {
	if state.NegotiatedProtocol != protocol {
		return fmt.Errorf("the peer did not negotiate the protocol %q (ALPN)", protocol)
	}
	return nil
}

// CheckPeer fails unless a peer that was accepted would still be: one of the authorities has signed
// its certificate, which the chains verify, that has one of the allowed names, or there are none,
// and none of the chains' certificates has been revoked. It does not look at the time.
func (c *Credentials) CheckPeer(chains [][]*x509.Certificate, allowed []Name) error {
	now := c.current()
	if !slices.ContainsFunc(chains, now.isSigned) {
		return status.Errorf(status.Authentication,
			"the authority that has signed the peer's certificate is no longer among those of tls.ca")
	}
	return now.checkPeer(chains, allowed)
}

// isSigned reports whether a chain ends with one of the authorities, perhaps with an earlier
// certificate of its key.
func (c *content) isSigned(chain []*x509.Certificate) bool {
	root := chain[len(chain)-1]
	return slices.ContainsFunc(c.issuers, func(a *x509.Certificate) bool {
		return bytes.Equal(a.RawSubject, root.RawSubject) &&
			bytes.Equal(a.RawSubjectPublicKeyInfo, root.RawSubjectPublicKeyInfo)
	})
}

func (c *content) checkPeer(chains [][]*x509.Certificate, allowed []Name) error {
	if err := c.revoked.check(chains); err != nil {
		return err
	}
	if len(allowed) == 0 {
		return nil
	}
	names := Names(chains[0][0])
	if slices.ContainsFunc(names, func(n Name) bool { return slices.Contains(allowed, n) }) {
		return nil
	}
	if len(names) == 0 {
		return status.Errorf(status.Authentication, "the peer's certificate has no subject "+
			"alternative name, and so none of the allowed ones: its common name does not count")
	}
	return status.Errorf(status.Authentication,
		"the peer's certificate is for %s, none of which is an allowed name", Describe(names))
}

func readContent(files Files) (content, error) {
	// Take the stamps first, so that a file that changes while it is read is read again.
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
	switch {
	case err != nil && bytes.Contains(key, []byte("ENCRYPTED")):
		return content{}, status.Errorf(status.BadConfig, "TLS key %[1]q is protected by a "+
			"passphrase, which nobody enters when a daemon starts: openssl pkey -in %[1]q -out "+
			"NEW.key, with mode 0640 or less", files.Key)
	case err != nil && isDER(certificate):
		return content{}, status.Errorf(status.BadConfig, "TLS certificate %[1]q is in DER format: "+
			"openssl x509 -inform der -in %[1]q -out NEW.pem", files.Certificate)
	case err != nil:
		return content{}, status.Errorf(status.BadConfig, "TLS certificate %q with key %q: %w: "+
			"--tls-cert and --tls-key want PEM files that belong together", files.Certificate,
			files.Key, err)
	}
	authorities, err := readFile("CA", files.CA)
	if err != nil {
		return content{}, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return content{}, status.Errorf(status.BadConfig,
			"TLS CA %q holds no certificate in PEM format: --tls-ca wants the certificate of the "+
				"authority, not its key, and not in DER (openssl x509 -in FILE -noout -subject shows one)",
			files.CA)
	}
	c := content{stamps: stamps, certificate: pair, authorities: pool,
		issuers: certificatesIn(authorities)}
	if files.Revoked != "" {
		lists, err := readFile("revocation", files.Revoked)
		if err != nil {
			return content{}, err
		}
		c.revoked, err = parseRevocations(lists, files.Revoked, c.issuers)
		if err != nil {
			return content{}, err
		}
	}
	return c, nil
}

// certificatesIn returns the certificates in a PEM file, as x509.CertPool finds them.
func certificatesIn(b []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, c)
		}
	}
	return all
}

func readFile(what, path string) ([]byte, error) {
	b, err := files.Read(path, maxFileSize)
	if err != nil {
		return nil, status.Errorf(status.BadConfig, "TLS %s: %w", what, err)
	}
	return b, nil
}

// stamps identifies the versions of the files; nil elements identify none.
type stamps [4]os.FileInfo

const (
	keyStamp     = 1
	revokedStamp = 3
)

func stampsOf(files Files) (stamps, error) {
	var s stamps
	var errs []error
	flags := []string{"--tls-cert", "--tls-key", "--tls-ca", "--tls-revoked"}
	for i, path := range []string{files.Certificate, files.Key, files.CA, files.Revoked} {
		if i == revokedStamp && path == "" {
			continue
		}
		var err error
		if s[i], err = os.Stat(path); err != nil {
			errs = append(errs, status.Errorf(status.BadConfig, "%s: %w", flags[i], err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return stamps{}, fmt.Errorf("examine the TLS files: %w", err)
	}
	return s, nil
}

// equal reports whether nothing has changed. Comparing the identity of the files detects a
// replacement within the resolution of their times.
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
