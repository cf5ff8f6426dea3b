// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"crypto/tls"
	"net/netip"
)

// SecureDevice is a Device that keeps others from reading and changing what its connections carry:
// by TLS 1.3 where they leave the machine. A connection that stays on the machine may do without
// TLS, if the kernel vouches for the peer.
//
// Other devices ignore ConnectionConfig.TLS: see Secure.
type SecureDevice interface {
	Device
	// Protects reports whether the device does: it may stand for one that does not.
	Protects() bool
	// ListenTLS is Listen for peers that use TLS. Requests tell whether theirs do: see
	// ProtectedRequest.
	ListenTLS(ctx context.Context, address netip.AddrPort, config ServerTLS) (Listener, error)
}

// Secure returns a device as a SecureDevice if it protects connections.
func Secure(device Device) (SecureDevice, bool) {
	s, is := device.(SecureDevice)
	return s, is && s.Protects()
}

// ClientTLS is what the connecting side needs for TLS.
type ClientTLS struct {
	// Config is for TLS 1.3.
	Config *tls.Config
	// PrivateData returns what to send to the peer in place of ConnectionConfig.PrivateData.
	// binding is what both ends of the TLS connection, and nobody else, know of it: its value
	// "tls-exporter" (RFC 9266), of 32 bytes. A connection that does without TLS does not call it.
	PrivateData func(binding []byte) []byte
}

// ServerTLS is what the accepting side needs for TLS.
type ServerTLS struct {
	// Config returns the configuration for the next connection, for TLS 1.3. It is called
	// concurrently.
	Config func() *tls.Config
	// Required turns peers away that come over the network and do not use TLS, before anything of
	// RDMA is read. Otherwise the first byte of each tells whether it does.
	Required bool
}

// Protection is what keeps others from reading and changing what a connection carries.
type Protection string

const (
	// Unprotected connections are carried by a network as they are.
	Unprotected Protection = ""
	// ProtectedByTLS is TLS 1.3, with certificates of both sides.
	ProtectedByTLS Protection = "tls"
	// ProtectedByMachine stands for connections that do not leave the machine: the kernel has told
	// each side who the other is.
	ProtectedByMachine Protection = "machine"
)

// Name returns the transport for people and metrics: with "+tls" if it uses TLS.
func (p *Parameters) Name() string {
	if p.Protection == ProtectedByTLS {
		return p.Transport + "+tls"
	}
	return p.Transport
}

// ProtectedRequest is a Request of a SecureDevice.
type ProtectedRequest interface {
	Request
	// Protection returns how the connection is protected.
	Protection() Protection
	// Binding returns what ClientTLS.PrivateData was given at the other end; nil without TLS.
	Binding() []byte
}

// Protected returns a request as one that tells how its connection is protected. That of a device
// that protects none is unprotected.
func Protected(r Request) ProtectedRequest {
	if p, is := r.(ProtectedRequest); is {
		return p
	}
	return unprotectedRequest{r}
}

type unprotectedRequest struct{ Request }

func (unprotectedRequest) Protection() Protection { return Unprotected }

func (unprotectedRequest) Binding() []byte { return nil }
