package mutualtls

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// revocations holds the lists of a file of revoked certificates (RFC 5280, section 5).
type revocations []revocationList

type revocationList struct {
	*x509.RevocationList
	serials map[string]time.Time // when each certificate was revoked
}

// parseRevocations parses lists in PEM format, or one in DER format.
func parseRevocations(b []byte, path string, authorities []*x509.Certificate) (revocations, error) {
	var encoded [][]byte
	if !bytes.Contains(b, []byte("-----BEGIN ")) {
		encoded = append(encoded, b)
	}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "X509 CRL" {
			encoded = append(encoded, block.Bytes)
		}
	}
	if len(encoded) == 0 {
		return nil, status.Errorf(status.BadConfig,
			"TLS revocation file %q holds no list (X509 CRL) in PEM format", path)
	}
	var all revocations
	for _, der := range encoded {
		parsed, err := x509.ParseRevocationList(der)
		if err != nil {
			return nil, status.Errorf(status.BadConfig, "TLS revocation file %q: %w", path, err)
		}
		for _, authority := range authorities {
			if !bytes.Equal(authority.RawSubject, parsed.RawIssuer) {
				continue
			}
			if err := parsed.CheckSignatureFrom(authority); err != nil {
				return nil, status.Errorf(status.BadConfig,
					"TLS revocation file %q: the list of %q is not signed by that authority: %w",
					path, authority.Subject, err)
			}
		}
		list := revocationList{parsed, make(map[string]time.Time)}
		for i := range parsed.RevokedCertificateEntries {
			entry := &parsed.RevokedCertificateEntries[i]
			list.serials[key(entry.SerialNumber)] = entry.RevocationTime
		}
		all = append(all, list)
	}
	return all, nil
}

func key(serial *big.Int) string { return string(serial.Bytes()) }

// check fails if any certificate of the chains that verify a peer has been revoked. What an
// authority has not signed is not its list, and then nobody knows what it has revoked.
func (r revocations) check(chains [][]*x509.Certificate) error {
	for _, chain := range chains {
		for i := range len(chain) - 1 {
			for _, list := range r {
				if !bytes.Equal(list.RawIssuer, chain[i].RawIssuer) {
					continue
				}
				if err := list.CheckSignatureFrom(chain[i+1]); err != nil {
					return status.Errorf(status.Authentication,
						"the list of revoked certificates of %q is not signed by it: %w",
						chain[i].Issuer, err)
				}
				if since, is := list.serials[key(chain[i].SerialNumber)]; is {
					return status.Errorf(status.Authentication, "the certificate %q with the serial "+
						"number %x was revoked at %s", chain[i].Subject, chain[i].SerialNumber,
						since.UTC().Format(time.DateTime))
				}
			}
		}
	}
	return nil
}

// warn logs which lists may be those of a stranger, and which are out of date. The latter stay in
// use: if they did not count, or if no peer were admitted without newer ones, a job that fails to
// fetch them would open or close the storage.
func (r revocations) warn(log *zap.Logger, now time.Time, authorities []*x509.Certificate) {
	for _, list := range r {
		if !slices.ContainsFunc(authorities, func(c *x509.Certificate) bool {
			return bytes.Equal(c.RawSubject, list.RawIssuer)
		}) {
			log.Warn("list of revoked TLS certificates is of an authority that is not in tls.ca: it "+
				"counts only if that is an intermediate one", zap.Stringer("issuer", list.Issuer))
		}
		if !list.NextUpdate.IsZero() && now.After(list.NextUpdate) {
			log.Warn("list of revoked TLS certificates is out of date and stays in use: renew the file",
				zap.Stringer("issuer", list.Issuer), zap.Time("next_update", list.NextUpdate))
		}
	}
}
