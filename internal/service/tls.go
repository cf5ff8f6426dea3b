package service

import (
	"net/netip"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/config"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
)

// loadTLS returns nil if there is no TLS.
func loadTLS(c config.TLS, log *zap.Logger) (*mutualtls.Credentials, error) {
	if !c.Enabled() {
		return nil, nil
	}
	return mutualtls.Load(mutualtls.Files{Certificate: c.Certificate, Key: c.Key, CA: c.CA}, log)
}

// WarnOfPlainText complains about control connections that others can read
// and change: those at an address that is not of the loopback interface,
// without TLS.
func (e *Environment) WarnOfPlainText(address netip.Addr) {
	if e.TLS == nil && !address.IsLoopback() {
		e.Log.Warn("control connections are neither encrypted nor authenticated: give --tls-cert, --tls-key and --tls-ca, or use a network that you trust",
			zap.Stringer("address", address))
	}
}
