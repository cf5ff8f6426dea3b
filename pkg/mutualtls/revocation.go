// SPDX-License-Identifier: Apache-2.0

package mutualtls

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// revocations holds the lists of a file of revoked certificates (RFC 5280, section 5).
type revocations []revocationList

type revocationList struct {
	*x509.RevocationList
	serials map[string]time.Time // when each certificate was revoked
	isKnown bool                 // an authority that may sign certificates of peers has signed it
}

// parseRevocations parses lists in PEM format, or one in DER format.
func parseRevocations(b []byte, path string, authorities []*x509.Certificate) (revocations, error) {
	encoded := [][]byte{b}
	if begun := bytes.Count(b, []byte("-----BEGIN ")); begun > 0 {
		encoded = nil
		blocks := 0
		for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
			if blocks++; block.Type == "X509 CRL" {
				encoded = append(encoded, block.Bytes)
			}
		}
		if blocks < begun { // pem.Decode skips what it cannot decode
			return nil, status.Errorf(status.BadConfig, "TLS revocation file %q: %d of its %d PEM "+
				"blocks are damaged: replace the file by a rename", path, begun-blocks, begun)
		}
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, status.Errorf(status.BadConfig, "TLS revocation file %q is empty: openssl ca "+
			"-gencrl makes a list, also one of nothing; or remove tls.revoked (--tls-revoked)", path)
	}
	if len(encoded) == 0 {
		return nil, status.Errorf(status.BadConfig,
			"TLS revocation file %q holds no list (X509 CRL) in PEM format", path)
	}
	var all revocations
	for _, der := range encoded {
		list, err := parseRevocationList(der, authorities)
		if err != nil {
			return nil, status.Errorf(status.BadConfig, "TLS revocation file %q: %w", path, err)
		}
		all = append(all, list)
	}
	return all, nil
}

// The extensions of a list that may be critical (RFC 5280, section 5.2). Others make it one of a
// part, or of other authorities.
var knownExtensions = []string{"2.5.29.20", "2.5.29.35"} // its number, the key of its authority

func parseRevocationList(der []byte, authorities []*x509.Certificate) (revocationList, error) {
	parsed, err := x509.ParseRevocationList(der)
	if err != nil && strings.Contains(err.Error(), "unsupported crl version") {
		return revocationList{}, fmt.Errorf("%w: the list is of version 1: give the authority "+
			"a file for crlnumber, and have it make the list again", err)
	}
	if err != nil {
		return revocationList{}, err
	}
	for _, extension := range parsed.Extensions {
		if extension.Critical && !slices.Contains(knownExtensions, extension.Id.String()) {
			return revocationList{}, fmt.Errorf("the list of %q has the critical extension %v: only "+
				"complete lists of what an authority itself has signed can be used", parsed.Issuer,
				extension.Id)
		}
	}
	list := revocationList{RevocationList: parsed, serials: make(map[string]time.Time)}
	// A new key of an authority has the name of the former one.
	var unsigned error
	for _, authority := range authorities {
		if bytes.Equal(authority.RawSubject, parsed.RawIssuer) && !list.isKnown {
			unsigned = parsed.CheckSignatureFrom(authority)
			list.isKnown = unsigned == nil
		}
	}
	if unsigned != nil {
		return revocationList{}, fmt.Errorf("the list of %q is not signed by that authority: %w",
			parsed.Issuer, unsigned)
	}
	for i := range parsed.RevokedCertificateEntries {
		entry := &parsed.RevokedCertificateEntries[i]
		list.serials[key(entry.SerialNumber)] = entry.RevocationTime
	}
	return list, nil
}

func key(serial *big.Int) string { return string(serial.Bytes()) }

// check fails if any certificate of the chains that verify a peer has been revoked.
func (r revocations) check(chains [][]*x509.Certificate) error {
	for _, chain := range chains {
		for i := range len(chain) - 1 {
			if err := r.checkIssued(chain[i], chain[i+1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkIssued checks a certificate by the lists that its issuer has signed. If lists have the name
// of the issuer, and nobody known has signed any of them, nobody knows what it has revoked.
func (r revocations) checkIssued(certificate, issuer *x509.Certificate) error {
	var unsigned error
	isSigned := false
	for _, list := range r {
		if !bytes.Equal(list.RawIssuer, certificate.RawIssuer) {
			continue
		}
		if err := list.CheckSignatureFrom(issuer); err != nil {
			if !list.isKnown {
				unsigned = err
			}
			continue
		}
		isSigned = true
		if since, is := list.serials[key(certificate.SerialNumber)]; is {
			return status.Errorf(status.Authentication, "the certificate %q with the serial number "+
				"%x was revoked at %s", certificate.Subject, certificate.SerialNumber,
				since.UTC().Format(time.DateTime))
		}
	}
	if unsigned != nil && !isSigned {
		return status.Errorf(status.Authentication,
			"the list of revoked certificates of %q is not signed by it: %w", certificate.Issuer,
			unsigned)
	}
	return nil
}

// warn logs which lists may be those of a stranger, and which are out of date. The latter stay in
// use: if they did not count, or if no peer were admitted without newer ones, a job that fails to
// fetch them would open or close the storage.
func (r revocations) warn(log *zap.Logger, now time.Time) {
	for _, list := range r {
		if !list.isKnown {
			log.Warn("list of revoked TLS certificates is of an authority that is not in tls.ca: it "+
				"counts only if that is an intermediate one", zap.Stringer("issuer", list.Issuer))
		}
		if !list.NextUpdate.IsZero() && now.After(list.NextUpdate) {
			log.Warn("list of revoked TLS certificates is out of date and stays in use: renew the file",
				zap.Stringer("issuer", list.Issuer), zap.Time("next_update", list.NextUpdate))
		}
	}
}
