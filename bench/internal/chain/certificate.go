// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// overTLS is the RDMA "provider" iwarp with TLS for data.
const overTLS = "iwarp+tls"

// secure makes a certificate that both sides have and trust, and returns the flags for it.
func (c *Chain) secure() ([]string, error) {
	if c.config.RDMA != overTLS {
		return nil, nil
	}
	certificate := filepath.Join(c.directory, "certificate.pem")
	key := filepath.Join(c.directory, "key.pem")
	if !exists(certificate) {
		if err := writeCertificate(certificate, key); err != nil {
			return nil, err
		}
	}
	return []string{"--tls-cert", certificate, "--tls-key", key, "--tls-ca", certificate,
		"--data-security", "required"}, nil
}

func writeCertificate(certificate, key string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	signed, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(),
		private)
	if err != nil {
		return err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	write := func(path, kind string, b []byte) error {
		return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600)
	}
	return errors.Join(write(key, "PRIVATE KEY", encoded),
		write(certificate, "CERTIFICATE", signed))
}
