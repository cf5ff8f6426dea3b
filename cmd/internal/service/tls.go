package service

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
)

// loadTLS returns nil if there is no TLS.
func loadTLS(c config.TLS, log *zap.Logger) (*mutualtls.Credentials, error) {
	if !c.Enabled() {
		return nil, nil
	}
	return mutualtls.Load(mutualtls.Files{Certificate: c.Certificate, Key: c.Key, CA: c.CA}, log)
}

// CertificateExpiryMetric is the name of the metric for alerts before the
// certificate expires.
const CertificateExpiryMetric = "zc_tls_certificate_expiry_timestamp_seconds"

// certificateExpiry reads the end of the certificate that is in use.
func certificateExpiry(credentials *mutualtls.Credentials) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: CertificateExpiryMetric, Help: "When the TLS certificate of this daemon expires, in seconds since 1970. Only with TLS.",
	}, func() float64 { return float64(credentials.NotAfter().Unix()) })
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
