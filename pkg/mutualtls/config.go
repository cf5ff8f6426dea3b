package mutualtls

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Protocol is the name (ALPN, RFC 7301) of what runs within TLS between relay
// and target: a certificate that is good for another service of the same
// machine must not lead its clients here.
const Protocol = "zc-relay-control"

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
