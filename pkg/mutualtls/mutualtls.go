// Package mutualtls is how relay and target prove to each other who they are:
// a certificate and its key, the authorities whose certificates a peer may
// have, and the TLS configurations that are made of them.
//
// Files are looked at with every new connection, so a certificate that is
// renewed in place is used from then on, without a signal. Connections that
// exist are not touched.

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
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Files name the PEM files of one side. All are required.
type Files struct {
	// Certificate holds this side's certificate, followed by those between
	// it and the authority that the peer trusts.
	Certificate string
	// Key holds the private key of the certificate.
	Key string
	// CA holds the authorities that may sign the peer's certificate.
	CA string
}

func (f Files) list() [3]string { return [3]string{f.Certificate, f.Key, f.CA} }

// Credentials are the content of Files, kept up to date. Their methods may be
// called concurrently.
type Credentials struct {
	files Files
	log   *zap.Logger

	mu      sync.Mutex // guards what follows
	content content
	refused stamps // of files that could not be used, so that it is logged once
}

// Protocol is the name (ALPN, RFC 7301) of what runs within TLS between relay
// and target: a certificate that is good for another service of the same
// machine must not lead its clients here.
const Protocol = "zc-relay-control"

// Load reads the files for the first time. The logger is told of everything
// that is read later; it may be nil.
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

// Client returns the configuration for a connection to a target, which must
// prove with its certificate that it is serverName: a DNS name or an IP
// address.
func (c *Credentials) Client(serverName string) *tls.Config {
	now := c.current()
	config := now.config()
	config.RootCAs, config.ServerName = now.authorities, serverName
	return config
}

// Server returns the configuration for a connection of a relay, which must
// have a certificate of one of the authorities and, unless allowedNames is
// empty, one of these names in it: DNS names, URIs or IP addresses, each as a
// whole.
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

// content is what the files held when they had these stamps.
type content struct {
	stamps      stamps
	certificate tls.Certificate
	authorities *x509.CertPool
}

// config is what both sides have in common.
func (c *content) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{c.certificate}, NextProtos: []string{Protocol},
		// Every connection is to show a certificate: one that is not valid any
		// more must not live on in a ticket.
		SessionTicketsDisabled: true,
		VerifyConnection:       checkProtocol,
	}
}

func checkProtocol(state tls.ConnectionState) error {
	if state.NegotiatedProtocol != Protocol {
		return fmt.Errorf("the peer does not want to speak %q (ALPN)", Protocol)
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
	return status.Errorf(status.Authentication, "the peer's certificate is for %q, which is none of the allowed names", names)
}

// namesOf lists the names that a certificate is for. The subject's common
// name is none of them (RFC 6125).
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

// Reload reads the files even if they seem to be unchanged. If they cannot be
// used, those of before stay in use.
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
	c.content, c.refused = read, stamps{}
	leaf := read.certificate.Leaf
	c.log.Info("loaded TLS certificate", zap.String("certificate", c.files.Certificate), zap.Strings("names", namesOf(leaf)),
		zap.Time("not_after", leaf.NotAfter), zap.String("authorities", c.files.CA))
	c.warnOfDates(leaf)
	return nil
}

func (c *Credentials) warnOfDates(leaf *x509.Certificate) {
	now := time.Now()
	switch {
	case now.Before(leaf.NotBefore):
		c.log.Warn("TLS certificate is not valid yet: peers refuse it", zap.String("certificate", c.files.Certificate), zap.Time("not_before", leaf.NotBefore))
	case now.After(leaf.NotAfter):
		c.log.Warn("TLS certificate has expired: peers refuse it; renew it in place", zap.String("certificate", c.files.Certificate), zap.Time("not_after", leaf.NotAfter))
	case now.Add(expiryWarning).After(leaf.NotAfter):
		c.log.Warn("TLS certificate expires soon; renew it in place", zap.String("certificate", c.files.Certificate), zap.Time("not_after", leaf.NotAfter))
	}
}

// current returns what the files hold now or, if that cannot be used, what
// they held before.
func (c *Credentials) current() content {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := stampsOf(c.files)
	if err == nil && now == c.content.stamps {
		return c.content
	}
	if err == nil && now == c.refused {
		return c.content
	}
	if err == nil {
		err = c.reload()
	}
	if err != nil && now != c.refused {
		c.refused = now
		c.log.Warn("changed TLS files cannot be used, the ones of before stay in use", zap.Error(err))
	}
	return c.content
}

// NotAfter is the end of this side's certificate.
func (c *Credentials) NotAfter() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.content.certificate.Leaf.NotAfter
}

// expiryWarning is how long before its end a certificate is complained about
// in the log. Whoever renews automatically has done so by then.
const expiryWarning = 7 * 24 * time.Hour

// maxFileSize bounds each file in bytes; the largest bundle of authorities in
// common use has a quarter of it.
const maxFileSize = 1 << 20

func readContent(files Files) (content, error) {
	// Stamps first: what changes while it is read is read again.
	read := content{}
	var err error
	if read.stamps, err = stampsOf(files); err != nil {
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
	if read.certificate, err = tls.X509KeyPair(certificate, key); err != nil {
		return content{}, status.Errorf(status.BadConfig, "TLS certificate %q with key %q: %w", files.Certificate, files.Key, err)
	}
	authorities, err := readFile("CA", files.CA)
	if err != nil {
		return content{}, err
	}
	read.authorities = x509.NewCertPool()
	if !read.authorities.AppendCertsFromPEM(authorities) {
		return content{}, status.Errorf(status.BadConfig, "TLS CA %q holds no certificate in PEM", files.CA)
	}
	return read, nil
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
		return nil, status.Errorf(status.BadConfig, "TLS %s %q has more than %d bytes", what, path, maxFileSize)
	}
	return b, nil
}

type stamps [3]stamp

// stamp tells a file from what it was before.
type stamp struct {
	modified time.Time
	size     int64
	inode    uint64
}

func stampsOf(files Files) (stamps, error) {
	var s stamps
	var errs []error
	for i, path := range files.list() {
		about, err := os.Stat(path)
		if err != nil {
			errs = append(errs, status.Errorf(status.BadConfig, "TLS file: %w", err))
			continue
		}
		s[i] = stamp{modified: about.ModTime(), size: about.Size(), inode: inodeOf(about)}
	}
	if err := errors.Join(errs...); err != nil {
		return stamps{}, fmt.Errorf("look at the TLS files: %w", err)
	}
	return s, nil
}

// inodeOf tells a file that was replaced within the resolution of its times.
func inodeOf(about os.FileInfo) uint64 {
	if s, ok := about.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
