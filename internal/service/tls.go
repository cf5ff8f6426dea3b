package service

import (
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/program"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
)

// tlsFlags name what secures the control connections.
type tlsFlags struct{ files mutualtls.Files }

func (o *tlsFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.files.Certificate, "tls-cert", "", "secure control connections by mutual TLS: PEM file with this side's certificate (default: plain text)")
	f.StringVar(&o.files.Key, "tls-key", "", "PEM file with the certificate's private key")
	f.StringVar(&o.files.CA, "tls-ca", "", "PEM file with the authorities that may sign the peer's certificate")
}

// load returns nil if there is no TLS.
func (o *tlsFlags) load(log *zap.Logger) (*mutualtls.Credentials, error) {
	if o.files == (mutualtls.Files{}) {
		return nil, nil
	}
	if o.files.Certificate == "" || o.files.Key == "" || o.files.CA == "" {
		return nil, fmt.Errorf("--tls-cert %q, --tls-key %q and --tls-ca %q: TLS needs all three", o.files.Certificate, o.files.Key, o.files.CA)
	}
	return mutualtls.Load(o.files, log)
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

// CheckTLSFlag refuses a flag that says nothing without TLS: who gives it
// takes the connections for secured.
func (e *Environment) CheckTLSFlag(name string, given bool) error {
	if given && e.TLS == nil {
		return program.Usagef("%s is given, but no TLS: give --tls-cert, --tls-key and --tls-ca too", name)
	}
	return nil
}
