// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	tagBytes   = 16
	nonceBytes = 12
)

// suite is a cipher suite of TLS 1.3.
type suite struct {
	hash     func() hash.Hash
	keyBytes int
	aead     func(key []byte) (cipher.AEAD, error)
}

var suites = map[uint16]*suite{
	tls.TLS_AES_128_GCM_SHA256:       {sha256.New, 16, newGCM},
	tls.TLS_AES_256_GCM_SHA384:       {sha512.New384, 32, newGCM},
	tls.TLS_CHACHA20_POLY1305_SHA256: {sha256.New, 32, chacha20poly1305.New},
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// direction holds the keys of the records in one direction.
type direction struct {
	suite  *suite
	secret []byte // the traffic secret, from which the next one is derived
	aead   cipher.AEAD
	iv     [nonceBytes]byte
	// nonce is that of the latest record. It is here, and not on the stack, because arguments of
	// interfaces escape.
	nonce    [nonceBytes]byte
	sequence uint64 // of the next record
}

// setSecret derives the keys from a traffic secret, which it keeps (RFC 8446 section 7.3).
func (d *direction) setSecret(secret []byte) error {
	key, err := d.suite.expand(secret, "key", d.suite.keyBytes)
	if err != nil {
		return err
	}
	defer clear(key)
	iv, err := d.suite.expand(secret, "iv", nonceBytes)
	if err != nil {
		return err
	}
	defer clear(iv)
	aead, err := d.suite.aead(key)
	if err != nil {
		if fips140.Enforced() {
			err = fmt.Errorf("%w (run with GODEBUG=fips140=on instead of only)", err)
		}
		return status.Errorf(status.NotSupported, "TLS cipher: %w", err)
	}
	clear(d.secret)
	d.secret, d.aead, d.iv, d.sequence = secret, aead, [nonceBytes]byte(iv), 0
	d.nonce = d.iv
	return nil
}

// update replaces the keys (RFC 8446 section 7.2).
func (d *direction) update() error {
	next, err := d.suite.expand(d.secret, "traffic upd", len(d.secret))
	if err != nil {
		return err
	}
	return d.setSecret(next)
}

// nextNonce returns the nonce of the next record (RFC 8446 section 5.3).
func (d *direction) nextNonce() []byte {
	const at = nonceBytes - 8
	binary.BigEndian.PutUint64(d.nonce[at:], binary.BigEndian.Uint64(d.iv[at:])^d.sequence)
	d.sequence++
	return d.nonce[:]
}

// clear forgets the keys. The key schedule of the cipher stays until the memory is used again.
func (d *direction) clear() {
	clear(d.secret)
	*d = direction{}
}

// expand is HKDF-Expand-Label without a context (RFC 8446 section 7.1).
func (s *suite) expand(secret []byte, label string, length int) ([]byte, error) {
	const prefix = "tls13 "
	info := binary.BigEndian.AppendUint16(nil, uint16(length))
	info = append(info, byte(len(prefix)+len(label)))
	info = append(info, prefix+label...)
	info = append(info, 0)
	key, err := hkdf.Expand(s.hash, secret, string(info), length)
	if err != nil {
		return nil, status.Errorf(status.NotSupported, "derive TLS keys: %w", err)
	}
	return key, nil
}
