// SPDX-License-Identifier: Apache-2.0

// Package webconfig reads the web configuration file of Prometheus exporters: TLS, users, and
// headers of a listener for HTTP. The format is that of the exporter toolkit
// (https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md), whose
// package serves by itself, without the bounds of our listeners.
package webconfig

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxFileSize bounds each file in bytes.
const maxFileSize = 1 << 20

// Config is the content of a file.
type Config struct {
	// Users holds the bcrypt hash of the password of each user. Without any, everybody is served.
	Users map[string]string
	// Headers are added to each reply.
	Headers map[string]string
	// Limiter limits the requests per time; nil for no limit.
	Limiter *rate.Limiter

	secure     tls.Config // without certificates
	pair       pair
	authority  string // file with the authorities of clients, "" for none
	authorized []string
	warnings   []Problem
}

// Problem is a mistake in a file.
type Problem struct {
	File  string
	Line  int // 0 if it is not known
	Field string
	Text  string
}

// String returns all parts on one line.
func (p Problem) String() string {
	var text strings.Builder
	text.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&text, ":%d", p.Line)
	}
	if p.Field != "" {
		text.WriteString(": " + p.Field)
	}
	return text.String() + ": " + p.Text
}

// Problems are the mistakes in a file, as an error.
type Problems []Problem

// Error returns one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// File is a web configuration file in use. Its methods may be called concurrently.
type File struct {
	path    string
	log     *zap.Logger
	current atomic.Pointer[Config]
}

// Load reads the file and everything that it names. The error is Problems if the content is wrong.
func Load(path string, log *zap.Logger) (*File, error) {
	f := &File{path: path, log: log}
	return f, f.Reload()
}

// Reload reads the file again. If it cannot be used, the former content stays in use.
func (f *File) Reload() error {
	c, err := Read(f.path)
	if err != nil {
		return err
	}
	c.pair.log = f.log
	for _, w := range c.warnings {
		f.log.Warn("web configuration: " + w.String())
	}
	f.current.Store(c)
	return nil
}

// Current returns the content in use.
func (f *File) Current() *Config { return f.current.Load() }

// TLS returns the configuration for a new connection, nil for plain text.
func (f *File) TLS() *tls.Config { return f.Current().TLS() }

// Read reads a file and everything that it names.
func Read(path string) (*Config, error) {
	content, err := files.Read(path, maxFileSize)
	if err != nil {
		return nil, status.Errorf(status.BadConfig, "read the web configuration file: %w", err)
	}
	c, problems := parse(path, content)
	if len(problems) == 0 {
		problems = c.load(path)
	}
	if len(problems) > 0 {
		return nil, status.Errorf(status.BadConfig, "%w", problems)
	}
	return c, nil
}

// Warnings returns what is allowed but hardly intended.
func (c *Config) Warnings() []Problem { return c.warnings }

// HasTLS reports whether connections use TLS.
func (c *Config) HasTLS() bool { return c.pair.isGiven() }

// IsPublic reports whether everybody may read everything, in plain text.
func (c *Config) IsPublic() bool { return !c.HasTLS() && len(c.Users) == 0 }

// VerifiesClients reports whether only clients with a certificate of the authorities can connect.
func (c *Config) VerifiesClients() bool {
	return c.HasTLS() && c.secure.ClientAuth == tls.RequireAndVerifyClientCert
}

// NotAfter returns when the certificate expires; the zero time without TLS.
func (c *Config) NotAfter() time.Time {
	if certificate := c.pair.loaded; certificate != nil {
		return certificate.Leaf.NotAfter
	}
	return time.Time{}
}

// TLS returns the configuration for a new connection, nil for plain text.
func (c *Config) TLS() *tls.Config {
	if !c.HasTLS() {
		return nil
	}
	return &c.secure
}

// load reads the files that c names.
func (c *Config) load(path string) Problems {
	if !c.HasTLS() {
		return nil
	}
	var problems Problems
	report := func(field string, line int, format string, args ...any) {
		problems = append(problems, Problem{File: path, Field: tlsSection + "." + field,
			Line: line, Text: fmt.Sprintf(format, args...)})
	}
	certificate, field, err := c.pair.read()
	if err != nil {
		report(field, c.pair.lineOf(field), "%v", err)
	} else {
		c.pair.loaded = certificate
	}
	if file := cmp.Or(c.pair.keyFile, path); c.pair.key != "" || c.pair.keyFile != "" {
		if info, err := os.Stat(file); err == nil && info.Mode().Perm()&othersMayRead != 0 {
			field := "key_file"
			if c.pair.keyFile == "" {
				field = "key"
			}
			c.warnings = append(c.warnings, Problem{File: path, Line: c.pair.lineOf(field),
				Field: tlsSection + "." + field, Text: fmt.Sprintf("every user of this machine "+
					"can read the private key in %s, whose mode is %#o: chmod o= %[1]s", file,
					info.Mode().Perm())})
		}
	}
	c.secure.GetCertificate = c.pair.get
	c.secure.NextProtos = []string{"http/1.1"}
	if c.authority != "" {
		line := c.pair.lineOf("client_ca_file")
		content, err := files.Read(c.authority, maxFileSize)
		if err != nil {
			report("client_ca_file", line, "%v", err)
		} else if !c.trust(content) {
			report("client_ca_file", line, "%s has no certificate in PEM format", c.authority)
		}
	}
	if len(c.authorized) > 0 {
		c.secure.VerifyConnection = c.verifyName
	}
	return problems
}

const othersMayRead fs.FileMode = 0o004

// trust adds the authorities that may sign the certificates of clients.
func (c *Config) trust(pem []byte) bool {
	if c.secure.ClientCAs == nil {
		c.secure.ClientCAs = x509.NewCertPool()
	}
	return c.secure.ClientCAs.AppendCertsFromPEM(pem)
}

// Accepts reports whether a client with the certificate of a connection, which may be older than c,
// could make one now. Without that, a connection that is kept alive would outlast its authority.
func (c *Config) Accepts(connection *tls.ConnectionState) bool {
	verifies := c.secure.ClientAuth == tls.RequireAndVerifyClientCert ||
		c.secure.ClientAuth == tls.VerifyClientCertIfGiven
	if !verifies {
		return true
	}
	if len(connection.PeerCertificates) == 0 {
		return c.secure.ClientAuth != tls.RequireAndVerifyClientCert
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range connection.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := connection.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: c.secure.ClientCAs, Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil && (len(c.authorized) == 0 || c.verifyName(*connection) == nil)
}

// verifyName rejects clients whose certificate has none of the allowed names.
func (c *Config) verifyName(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return nil // the client authentication type decides
	}
	leaf := state.PeerCertificates[0]
	names := slices.Concat(leaf.DNSNames, leaf.EmailAddresses)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	for _, uri := range leaf.URIs {
		names = append(names, uri.String())
	}
	if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(c.authorized, n) }) {
		return nil
	}
	return errors.New("the client's certificate has none of the names of client_allowed_sans")
}

// pair is a certificate and its key, in files or in place. The files are read again when they have
// changed, so that a certificate that is renewed in place needs no signal.
type pair struct {
	certificate, key         string // in PEM format
	certificateFile, keyFile string
	lines                    map[string]int // by field
	log                      *zap.Logger

	mu      sync.Mutex // guards what follows; held while files are read
	checked stamps
	inUse   atomic.Pointer[tls.Certificate]
	loaded  *tls.Certificate // the first
}

func (p *pair) isGiven() bool {
	return p.certificate+p.key+p.certificateFile+p.keyFile != ""
}

func (p *pair) lineOf(field string) int { return p.lines[field] }

// stamps identifies the versions of the two files.
type stamps [2]stamp

type stamp struct {
	changed time.Time
	size    int64
	inode   uint64
}

func stampOf(file string) stamp {
	if file == "" {
		return stamp{}
	}
	info, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	s := stamp{changed: info.ModTime(), size: info.Size()}
	if about, is := info.Sys().(*syscall.Stat_t); is {
		s.inode = about.Ino
	}
	return s
}

// read reads both. If it fails, field is the one that is wrong.
func (p *pair) read() (certificate *tls.Certificate, field string, err error) {
	p.checked = stamps{stampOf(p.certificateFile), stampOf(p.keyFile)}
	certificatePEM, keyPEM := []byte(p.certificate), []byte(p.key)
	if p.certificateFile != "" {
		if certificatePEM, err = files.Read(p.certificateFile, maxFileSize); err != nil {
			return nil, "cert_file", err
		}
	}
	if p.keyFile != "" {
		if keyPEM, err = files.Read(p.keyFile, maxFileSize); err != nil {
			return nil, "key_file", err
		}
	}
	loaded, err := tls.X509KeyPair(certificatePEM, keyPEM)
	if err != nil {
		field = "cert_file"
		if p.certificateFile == "" {
			field = "cert"
		}
		return nil, field, fmt.Errorf("certificate and key cannot be used together: %w", err)
	}
	p.inUse.Store(&loaded)
	return &loaded, "", nil
}

// get returns the certificate for a new connection. While another connection reads the files, which
// may block, the former certificate stays in use.
func (p *pair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if p.mu.TryLock() {
		defer p.mu.Unlock()
		now := stamps{stampOf(p.certificateFile), stampOf(p.keyFile)}
		if now != p.checked {
			if _, field, err := p.read(); err != nil && p.log != nil {
				p.log.Error("web configuration: the former certificate stays in use",
					zap.String("field", tlsSection+"."+field), zap.Error(err))
			}
		}
	}
	return p.inUse.Load(), nil
}

// beside returns a path that is relative to the directory of file.
func beside(file, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}
