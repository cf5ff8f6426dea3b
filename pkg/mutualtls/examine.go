// SPDX-License-Identifier: Apache-2.0

package mutualtls

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

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
	if len(all) == 0 {
		return nil, status.Errorf(status.InvalidValue, "there is no certificate in PEM format")
	}
	return all, nil
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
