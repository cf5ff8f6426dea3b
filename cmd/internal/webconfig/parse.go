// SPDX-License-Identifier: Apache-2.0

package webconfig

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"

	"github.com/zc-relay/zc-relay/internal/similar"
	"github.com/zc-relay/zc-relay/internal/yamlerror"
)

// The sections of a file.
const (
	tlsSection   = "tls_server_config"
	httpSection  = "http_server_config"
	rateSection  = "rate_limit"
	usersSection = "basic_auth_users"
)

// maxCost bounds the cost of a password's hash: the check of one of this cost takes seconds.
const maxCost = 16

// headers are the ones that a file may set, with their values, or all for nil.
var headers = map[string][]string{
	"Strict-Transport-Security": nil,
	"X-Content-Type-Options":    {"nosniff"},
	"X-Frame-Options":           {"deny", "sameorigin"},
	"X-XSS-Protection":          nil,
	"Content-Security-Policy":   nil,
}

var versions = map[string]uint16{"TLS10": tls.VersionTLS10, "TLS11": tls.VersionTLS11,
	"TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}

var curves = map[string]tls.CurveID{"CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384,
	"CurveP521": tls.CurveP521, "X25519": tls.X25519}

var clientAuth = map[string]tls.ClientAuthType{
	"": tls.NoClientCert, "NoClientCert": tls.NoClientCert,
	"RequestClientCert": tls.RequestClientCert, "RequireClientCert": tls.RequireAnyClientCert,
	"RequireAnyClientCert":       tls.RequireAnyClientCert,
	"VerifyClientCertIfGiven":    tls.VerifyClientCertIfGiven,
	"RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
}

// parser collects the problems of a file.
type parser struct {
	file     string
	problems Problems
}

func (p *parser) report(n *yaml.Node, field, format string, args ...any) {
	p.problems = append(p.problems, Problem{File: p.file, Line: n.Line, Field: field,
		Text: fmt.Sprintf(format, args...)})
}

// parse reads the content of a file, but not what it names.
func parse(file string, content []byte) (*Config, Problems) {
	p := &parser{file: file}
	c := &Config{Users: map[string]string{}, Headers: map[string]string{}}
	c.secure.MinVersion, c.secure.MaxVersion = tls.VersionTLS12, tls.VersionTLS13
	c.pair.lines = map[string]int{}
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return c, nil // an empty file secures nothing, and is valid
	case err != nil:
		line, text := yamlerror.Locate(content, err)
		return nil, Problems{{File: file, Line: line, Text: text}}
	}
	p.section(document.Content[0], "", map[string]func(*yaml.Node, string){
		tlsSection:   func(n *yaml.Node, field string) { p.tls(c, n, field) },
		httpSection:  func(n *yaml.Node, field string) { p.http(c, n, field) },
		rateSection:  func(n *yaml.Node, field string) { p.rate(c, n, field) },
		usersSection: func(n *yaml.Node, field string) { p.users(c, n, field) },
	})
	return c, p.problems
}

// section reads a mapping. keys has what reads the value of each key.
func (p *parser) section(n *yaml.Node, field string, keys map[string]func(*yaml.Node, string)) {
	p.mapping(n, field, func(key, value *yaml.Node, path string) {
		read, known := keys[key.Value]
		if !known {
			text := "the keys here are " + strings.Join(slices.Sorted(maps.Keys(keys)), ", ")
			if meant := similar.Closest(key.Value,
				slices.Sorted(maps.Keys(keys))); meant != "" {
				text = fmt.Sprintf("did you mean %q?", meant)
			}
			p.report(key, path, "unknown key: %s", text)
			return
		}
		read(value, path)
	})
}

func (p *parser) mapping(n *yaml.Node, field string, each func(key, value *yaml.Node,
	path string)) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		p.report(n, field, "must have keys and values")
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := strings.TrimPrefix(field+"."+key.Value, ".")
		if seen[key.Value] {
			p.report(key, path, "is given twice")
			continue
		}
		seen[key.Value] = true
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		each(key, value, path)
	}
}

// text returns what reads a text into to, and notes the line of the key.
func (p *parser) text(to *string, lines map[string]int) func(*yaml.Node, string) {
	return func(n *yaml.Node, field string) {
		if n.Kind != yaml.ScalarNode {
			p.report(n, field, "must be a text")
			return
		}
		if lines != nil {
			lines[field[strings.LastIndexByte(field, '.')+1:]] = n.Line
		}
		if n.Tag != "!!null" {
			*to = n.Value
		}
	}
}

func (p *parser) boolean(to *bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, field string) {
		if n.Decode(to) != nil {
			p.report(n, field, "%q must be true or false", n.Value)
		}
	}
}

func (p *parser) texts(to *[]string) func(*yaml.Node, string) {
	return func(n *yaml.Node, field string) {
		if n.Decode(to) != nil {
			p.report(n, field, "must be a list of texts")
		}
	}
}

// list returns the elements of a list.
func (p *parser) list(n *yaml.Node, field string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode && n.Tag != "!!null" {
		p.report(n, field, "must be a list")
	}
	return n.Content
}

// word returns the value that a word stands for.
func word[T any](p *parser, n *yaml.Node, field string, words map[string]T) (value T) {
	value, known := words[n.Value]
	if n.Kind != yaml.ScalarNode || !known {
		options := slices.DeleteFunc(slices.Sorted(maps.Keys(words)),
			func(w string) bool { return w == "" })
		p.report(n, field, "%q must be one of %s", n.Value, strings.Join(options, ", "))
	}
	return value
}

func (p *parser) tls(c *Config, section *yaml.Node, field string) {
	var authorities string
	ignored := false
	lines := c.pair.lines
	p.section(section, field, map[string]func(*yaml.Node, string){
		"cert":           p.text(&c.pair.certificate, lines),
		"key":            p.text(&c.pair.key, lines),
		"cert_file":      p.text(&c.pair.certificateFile, lines),
		"key_file":       p.text(&c.pair.keyFile, lines),
		"client_ca":      p.text(&authorities, lines),
		"client_ca_file": p.text(&c.authority, lines),
		"client_auth_type": func(n *yaml.Node, field string) {
			c.secure.ClientAuth = word(p, n, field, clientAuth)
		},
		"min_version": func(n *yaml.Node, field string) {
			c.secure.MinVersion = word(p, n, field, versions)
		},
		"max_version": func(n *yaml.Node, field string) {
			c.secure.MaxVersion = word(p, n, field, versions)
		},
		"cipher_suites": func(n *yaml.Node, field string) { p.ciphers(c, n, field) },
		"curve_preferences": func(n *yaml.Node, field string) {
			for _, name := range p.list(n, field) {
				c.secure.CurvePreferences = append(c.secure.CurvePreferences,
					word(p, name, field, curves))
			}
		},
		"prefer_server_cipher_suites": p.boolean(&ignored), // has no effect since Go 1.17
		"client_allowed_sans":         p.texts(&c.authorized),
	})
	c.pair.certificateFile = beside(p.file, c.pair.certificateFile)
	c.pair.keyFile = beside(p.file, c.pair.keyFile)
	c.authority = beside(p.file, c.authority)
	p.checkTLS(c, section, field, authorities)
}

func (p *parser) ciphers(c *Config, n *yaml.Node, field string) {
	suites := make(map[string]uint16)
	for _, s := range tls.CipherSuites() {
		suites[s.Name] = s.ID
	}
	for _, name := range p.list(n, field) {
		if id, known := suites[name.Value]; known {
			c.secure.CipherSuites = append(c.secure.CipherSuites, id)
		} else {
			p.report(name, field, "%q is no cipher suite of Go that is considered secure",
				name.Value)
		}
	}
}

// checkTLS checks what the keys of the section say together.
func (p *parser) checkTLS(c *Config, n *yaml.Node, field, authorities string) {
	isNeeded := c.pair.isGiven() || authorities != "" || c.authority != "" ||
		c.secure.ClientAuth != tls.NoClientCert
	if isNeeded && c.pair.certificate+c.pair.certificateFile == "" {
		p.report(n, field+".cert_file", "is missing: TLS needs a certificate")
	}
	if isNeeded && c.pair.key+c.pair.keyFile == "" {
		p.report(n, field+".key_file", "is missing: TLS needs the certificate's private key")
	}
	for _, twice := range [][2]string{{"cert", "cert_file"}, {"key", "key_file"},
		{"client_ca", "client_ca_file"}} {
		if line := c.pair.lines[twice[0]]; line > 0 && c.pair.lines[twice[1]] > 0 {
			p.report(&yaml.Node{Line: line}, field+"."+twice[0],
				"excludes %s: give one of them", twice[1])
		}
	}
	if c.secure.MinVersion > c.secure.MaxVersion {
		p.report(n, field+".min_version", "is later than max_version")
	}
	if authorities != "" && !c.trust([]byte(authorities)) {
		p.report(&yaml.Node{Line: c.pair.lines["client_ca"]}, field+".client_ca",
			"has no certificate in PEM format")
	}
	hasAuthorities := authorities != "" || c.authority != ""
	verifies := c.secure.ClientAuth == tls.RequireAndVerifyClientCert ||
		c.secure.ClientAuth == tls.VerifyClientCertIfGiven
	switch {
	case hasAuthorities && c.secure.ClientAuth == tls.NoClientCert:
		p.report(n, field+".client_auth_type", "is missing: client_ca_file has no effect "+
			"without RequireAndVerifyClientCert")
	case verifies && !hasAuthorities:
		p.report(n, field+".client_ca_file",
			"is missing: client_auth_type needs the authorities that may sign the certificates "+
				"of clients")
	case len(c.authorized) > 0 && c.secure.ClientAuth != tls.RequireAndVerifyClientCert:
		p.report(n, field+".client_allowed_sans",
			"proves nothing without client_auth_type RequireAndVerifyClientCert")
	}
}

func (p *parser) http(c *Config, n *yaml.Node, field string) {
	http2 := false // is accepted, and the listener speaks HTTP/1.1 all the same
	p.section(n, field, map[string]func(*yaml.Node, string){
		"http2": p.boolean(&http2),
		"headers": func(n *yaml.Node, field string) {
			p.mapping(n, field, func(key, value *yaml.Node, path string) {
				allowed, known := headers[key.Value]
				switch {
				case !known:
					p.report(key, path, "cannot be set: only %s can",
						strings.Join(slices.Sorted(maps.Keys(headers)), ", "))
				case value.Kind != yaml.ScalarNode || strings.ContainsAny(value.Value, "\r\n"):
					p.report(value, path, "must be a line of text")
				case allowed != nil && !slices.Contains(allowed, value.Value):
					p.report(value, path, "%q must be one of %s", value.Value,
						strings.Join(allowed, ", "))
				}
				c.Headers[key.Value] = value.Value
			})
		},
	})
}

func (p *parser) rate(c *Config, n *yaml.Node, field string) {
	burst, interval := 0, time.Duration(0)
	p.section(n, field, map[string]func(*yaml.Node, string){
		"burst": func(n *yaml.Node, field string) {
			var err error
			if burst, err = strconv.Atoi(n.Value); err != nil || burst < 1 {
				p.report(n, field, "%q must be a number from 1", n.Value)
			}
		},
		"interval": func(n *yaml.Node, field string) {
			var err error
			if interval, err = time.ParseDuration(n.Value); err != nil || interval < 0 {
				p.report(n, field, "%q must be a time with a unit, for instance 1s", n.Value)
			}
		},
	})
	if interval > 0 {
		if burst == 0 {
			p.report(n, field+".burst", "is missing: nobody would be served")
		}
		c.Limiter = rate.NewLimiter(rate.Every(interval), burst)
	}
}

func (p *parser) users(c *Config, n *yaml.Node, field string) {
	p.mapping(n, field, func(key, value *yaml.Node, path string) {
		cost, err := bcrypt.Cost([]byte(value.Value))
		switch {
		case value.Kind != yaml.ScalarNode || err != nil:
			p.report(value, path, "is no bcrypt hash of a password ($2y$…): htpasswd -nBC 10 %s "+
				"prints one", key.Value)
		case cost > maxCost:
			p.report(value, path, "has the cost %d, and each check would take many seconds: "+
				"htpasswd -nBC 10 %s prints another hash", cost, key.Value)
		}
		c.Users[key.Value] = value.Value
	})
}
