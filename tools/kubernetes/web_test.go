// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// With a web configuration file, the daemons get it from a secret, probes use TLS, and Prometheus
// has what it needs.
func TestAWebConfigurationFileComesFromASecret(t *testing.T) {
	web := map[string]any{"web": map[string]any{"secret": "metrics", "https": true}}
	text, err := render(t, map[string]any{
		"relay": web, "target": map[string]any{"enabled": true},
		"serviceMonitor": map[string]any{"enabled": true, "endpoint": map[string]any{
			"scheme": "https", "tlsConfig": map[string]any{"insecureSkipVerify": true}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decode(t, text) {
		switch o := o.(type) {
		case *apps.DaemonSet:
			pod := o.Spec.Template.Spec
			has := strings.HasSuffix(o.Name, "relay")
			daemon := pod.Containers[0]
			if slices.Contains(daemon.Command, "/etc/zc-relay-web/web.yaml") != has {
				t.Errorf("%s runs %v", o.Name, daemon.Command)
			}
			if slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool {
				return v.Secret != nil && v.Secret.SecretName == "metrics"
			}) != has {
				t.Errorf("%s has the volumes %v", o.Name, pod.Volumes)
			}
			sidecar := strings.Join(pod.Containers[1].Command, " ")
			if strings.Contains(sidecar, "/etc/zc-relay-web/*") != has {
				t.Errorf("%s: the sidecar looks at %s", o.Name, sidecar)
			}
			for _, probe := range []*core.Probe{daemon.StartupProbe, daemon.LivenessProbe,
				daemon.ReadinessProbe} {
				if (probe.HTTPGet.Scheme == core.URISchemeHTTPS) != has {
					t.Errorf("%s: a probe uses %q", o.Name, probe.HTTPGet.Scheme)
				}
			}
		case *monitoring.ServiceMonitor:
			e := o.Spec.Endpoints[0]
			if e.Scheme == nil || !strings.EqualFold(string(*e.Scheme), "https") ||
				e.Port != "operations" {
				t.Errorf("the endpoint is %+v", e)
			}
		}
	}
}
