package ops

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

// BuildInfoMetric is the name of the metric whose labels tell the build.
const BuildInfoMetric = "zc_build_info"

// buildInfo is the customary metric that is always 1 and says which build runs.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: BuildInfoMetric, Help: "Always 1; its labels tell the build.",
		ConstLabels: prometheus.Labels{
			"version": buildinfo.Version(), "revision": buildinfo.Revision(), "tags": buildinfo.Tags(), "goversion": runtime.Version(),
		},
	})
	g.Set(1)
	return g
}
