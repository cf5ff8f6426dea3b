// SPDX-License-Identifier: Apache-2.0

package mutualtls

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Validity says until when something can be used.
type Validity struct {
	What  string
	Until time.Time
}

// Validities returns until when this side's certificate, the authorities, and the lists of revoked
// certificates are good, as they are in the files now.
func (c *Credentials) Validities() []Validity {
	now := c.current()
	leaf := now.certificate.Leaf
	all := []Validity{{"certificate for " + strings.Join(texts(Names(leaf)), " "), leaf.NotAfter}}
	for _, authority := range now.issuers {
		all = append(all, Validity{fmt.Sprintf("authority %q", authority.Subject), authority.NotAfter})
	}
	for _, list := range now.revoked {
		if !list.NextUpdate.IsZero() {
			all = append(all, Validity{fmt.Sprintf("list of revoked certificates of %q", list.Issuer),
				list.NextUpdate})
		}
	}
	return all
}

// Problems returns why peers will reject this side's certificate, or all peers but one be rejected,
// beside what the time decides.
func (c *Credentials) Problems() []string {
	now := c.current()
	return now.problems(c.files.Usage)
}

func (c *content) problems(usage x509.ExtKeyUsage) (all []string) {
	leaf := c.certificate.Leaf
	if usage != x509.ExtKeyUsageAny && len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(leaf.ExtKeyUsage, usage) &&
		!slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
		name := "clientAuth"
		if usage == x509.ExtKeyUsageServerAuth {
			name = "serverAuth"
		}
		all = append(all, "peers will reject the certificate: it lacks the extended key usage "+name+
			"; issue it again with that usage")
	}
	if usage == x509.ExtKeyUsageServerAuth && len(Names(leaf)) == 0 {
		all = append(all, "peers will reject the certificate: it has no subject alternative name, "+
			"and its common name does not count; issue it again with the name or address that they "+
			"connect to")
	}
	for _, authority := range c.issuers {
		if !authority.IsCA && !authority.Equal(leaf) {
			all = append(all, fmt.Sprintf("tls.ca holds the certificate of %q, which is no "+
				"authority (CA:FALSE): give the certificate that has signed those of the peers",
				authority.Subject))
		}
	}
	return all
}

// isDER reports whether a file has a certificate in DER format.
func isDER(b []byte) bool {
	_, err := x509.ParseCertificate(b)
	return err == nil
}

// ParseCertificates returns the certificates of a PEM file, that of a peer first.
func ParseCertificates(b []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, status.Errorf(status.InvalidValue, "certificate %d: %w", len(all)+1, err)
		}
		all = append(all, c)
	}
	if len(all) > 0 {
		return all, nil
	}
	text := "it has no certificate in PEM format"
	switch block, _ := pem.Decode(b); {
	case isDER(b):
		text = "it is in DER format: openssl x509 -inform der -in FILE -out FILE.pem"
	case block != nil:
		text = fmt.Sprintf("it has no certificate, but a %s: give the file with BEGIN CERTIFICATE",
			printable.Line(block.Type, 40))
	}
	return nil, status.Errorf(status.InvalidValue, "%s", text)
}

// Examine fails unless a server with Server(allowed) would accept a client with these certificates,
// whose own is the first, at a time.
func (c *Credentials) Examine(presented []*x509.Certificate, allowed []Name, at time.Time) error {
	now := c.current()
	intermediates := x509.NewCertPool()
	for _, certificate := range presented[1:] {
		intermediates.AddCert(certificate)
	}
	chains, err := presented[0].Verify(x509.VerifyOptions{
		Roots: now.authorities, Intermediates: intermediates, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return status.Errorf(status.Authentication, "%w", err)
	}
	return now.checkPeer(chains, allowed)
}
