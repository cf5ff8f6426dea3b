// SPDX-License-Identifier: Apache-2.0

package mutualtls

import (
	"crypto/x509"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Name is a name for which a certificate may be valid: a DNS name, a URI, or an IP address (subject
// alternative names, RFC 5280, section 4.2.1.6). Two names are the same if they are equal (==).
// Names of different kinds differ, whatever their texts.
type Name struct{ kind, text string }

// The kinds of names, which are their prefixes.
const (
	kindDNS = "dns"
	kindURI = "uri"
	kindIP  = "ip"
)

// maxNameLength bounds a name in bytes. SPIFFE IDs have at most as many, and DNS names less.
const maxNameLength = 2048

// dnsName matches what a DNS name consists of. A wildcard is none: it would admit whoever gets a
// certificate for any name below.
var dnsName = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.)*` +
	`[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.?$`)

// ParseName parses dns:NAME, uri:URI, or ip:ADDRESS. DNS names and addresses need no prefix.
// Letters of DNS names match regardless of case; URIs match as they are written.
func ParseName(text string) (Name, error) {
	kind, rest, _ := strings.Cut(text, ":")
	kind = strings.ToLower(kind) // OpenSSL writes DNS:, URI:, IP:
	switch {
	case len(text) > maxNameLength:
		return Name{}, status.Errorf(status.InvalidValue,
			"is longer than the %d bytes that a name in a certificate may have", maxNameLength)
	case kind == kindURI:
		return parseURI(rest)
	case kind == kindIP:
		return parseIP(rest)
	case kind == kindDNS:
		return parseDNS(rest)
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return parseIP(text)
	}
	if strings.ContainsAny(text, ":/") {
		return Name{}, status.Errorf(status.InvalidValue,
			"is neither a DNS name nor an IP address: write %s:%s if it is a URI", kindURI, text)
	}
	return parseDNS(text)
}

func parseURI(text string) (Name, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		return Name{}, status.Errorf(status.InvalidValue,
			"is not a URI with a scheme, such as %s:spiffe://example.org/relay", kindURI)
	}
	return Name{kindURI, u.String()}, nil
}

func parseIP(text string) (Name, error) {
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		return Name{}, status.Errorf(status.InvalidValue,
			"is not an IP address without a zone, such as %s:192.0.2.1", kindIP)
	}
	return Name{kindIP, address.Unmap().String()}, nil
}

func parseDNS(text string) (Name, error) {
	_, notIP := netip.ParseAddr(text)
	if !dnsName.MatchString(text) || len(text) > 254 || notIP == nil {
		return Name{}, status.Errorf(status.InvalidValue, "is not a DNS name (letters, digits, "+
			"hyphens, and dots, without wildcards), such as dpu-7.example")
	}
	return Name{kindDNS, strings.ToLower(strings.TrimSuffix(text, "."))}, nil
}

// String returns the name with its prefix, as ParseName takes it.
func (n Name) String() string { return n.kind + ":" + n.text }

// Names returns the names for which a certificate is valid. The subject's common name is not one
// of them (RFC 6125).
func Names(leaf *x509.Certificate) []Name {
	var names []Name
	for _, name := range leaf.DNSNames {
		names = append(names, Name{kindDNS, strings.ToLower(strings.TrimSuffix(name, "."))})
	}
	for _, uri := range leaf.URIs {
		names = append(names, Name{kindURI, uri.String()})
	}
	for _, ip := range leaf.IPAddresses {
		if address, ok := netip.AddrFromSlice(ip); ok {
			names = append(names, Name{kindIP, address.Unmap().String()})
		}
	}
	return names
}

// Describe lists names for an error or a log. A peer has chosen them.
func Describe(names []Name) string { return printable.Names(texts(names)) }

func texts(names []Name) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = name.String()
	}
	return all
}
