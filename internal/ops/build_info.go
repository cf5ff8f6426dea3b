package ops

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

// buildInfo is the customary metric that is always 1 and says which build runs.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "zc_build_info", Help: "Always 1; its labels tell the build.",
		ConstLabels: prometheus.Labels{
			"version": buildinfo.Version(), "revision": buildinfo.Revision(), "tags": buildinfo.Tags(), "goversion": runtime.Version(),
		},
	})
	g.Set(1)
	return g
}
