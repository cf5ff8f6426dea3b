// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// DataSecurity is what a relay or a target wants for the RDMA connections of its sessions. The
// relay says it in its Hello, the target in its HelloReply.
type DataSecurity uint8

const (
	// DataSecurityOff means that data travels as the transport carries it.
	DataSecurityOff DataSecurity = iota
	// DataSecurityTLS means TLS, if the peer wants it, too.
	DataSecurityTLS
	// DataSecurityRequired means that there is no session without TLS, or what counts as much: the
	// connections stay on one machine, or the operator has declared the fabric secure.
	DataSecurityRequired

	dataSecurityCount
)

// String returns the value's name in configuration.
func (s DataSecurity) String() string {
	switch s {
	case DataSecurityOff:
		return "off"
	case DataSecurityTLS:
		return "tls"
	case DataSecurityRequired:
		return "required"
	}
	return "unknown"
}

// DataSecurities returns the names of all values, in their order.
func DataSecurities() []string {
	var all []string
	for s := range dataSecurityCount {
		all = append(all, s.String())
	}
	return all
}

// DataUsesTLS reports whether the connections of a session use TLS, by what its two sides want. It
// fails with status.BadConfig if one side requires what the other does not have.
func DataUsesTLS(relay, target DataSecurity) (bool, error) {
	const text = "security.data is %v at the relay and %v at the target: set it to tls or required " +
		"(--data-security) on both sides, or to off"
	isRequired := relay == DataSecurityRequired || target == DataSecurityRequired
	isOff := relay == DataSecurityOff || target == DataSecurityOff
	if isRequired && isOff {
		return false, status.Errorf(status.BadConfig, text, relay, target)
	}
	return !isOff, nil
}

// CheckDevice fails with status.NotSupported if TLS or what counts as much is required, and an RDMA
// device has neither: then the operator has to declare what protects the fabric.
func (own DataSecurity) CheckDevice(device rdma.Device, fabric string) error {
	if _, protects := rdma.Secure(device); protects || fabric != "" || own != DataSecurityRequired {
		return nil
	}
	return status.Errorf(status.NotSupported, "security.data is required, and the RDMA transport %s "+
		"cannot encrypt: if the fabric does, declare it by security.fabric: ipsec, macsec or trusted "+
		"(--fabric-security), or choose rdma.provider iwarp or auto", device.Capabilities().Transport)
}

func checkDataSecurity(s DataSecurity) error {
	if s >= dataSecurityCount {
		return status.Errorf(status.InvalidValue, "unknown data_security %d", s)
	}
	return nil
}

// bindingLabel is that of the secret of a control connection (RFC 8446 section 7.5), and
// bindingBytes its length.
const (
	bindingLabel = "EXPORTER-zc-relay-data"
	bindingBytes = 32
)

// DataBinder proves that the TLS connections of a session's data belong to its control connection:
// only the ends of that know its secret.
type DataBinder struct{ secret []byte }

// NewDataBinder returns the binder of a transport that NewTLSClient or NewTLSServer has returned.
// It fails with status.Authentication for others.
func NewDataBinder(transport Transport) (*DataBinder, error) {
	if t, is := transport.(*tcpTransport); is {
		if secured, is := t.stream.(*tls.Conn); is {
			state := secured.ConnectionState()
			secret, err := state.ExportKeyingMaterial(bindingLabel, nil, bindingBytes)
			if err != nil {
				return nil, status.Errorf(status.Authentication, "export a secret of TLS: %w", err)
			}
			return &DataBinder{secret}, nil
		}
	}
	return nil, status.Errorf(status.Authentication, "the control connection has no TLS")
}

// Bind returns the private data of a connection: the token, and the proof that the end of the TLS
// connection with this binding (rdma.ClientTLS.PrivateData) is the one of the control connection.
func (b *DataBinder) Bind(token [16]byte, binding []byte) RDMAPrivateData {
	return RDMAPrivateData{Token: token, Proof: b.proof(token, binding)}
}

// Check fails with status.Authentication unless Bind has made the private data at the other end.
func (b *DataBinder) Check(d RDMAPrivateData, binding []byte) error {
	want := b.proof(d.Token, binding)
	if !hmac.Equal(d.Proof[:], want[:]) {
		return status.Errorf(status.Authentication, "the TLS connection does not belong to the "+
			"session's control connection")
	}
	return nil
}

func (b *DataBinder) proof(token [16]byte, binding []byte) (proof [sha256.Size]byte) {
	mac := hmac.New(sha256.New, b.secret)
	_, _ = mac.Write(token[:])
	_, _ = mac.Write(binding)
	mac.Sum(proof[:0])
	return proof
}
