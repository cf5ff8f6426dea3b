// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"os"
	"regexp"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// The rules and the example for Alertmanager know daemons by job, and targets by their control
// address.
func TestScrapesHaveTheLabelsThatAlertsExpectInEveryRelease(t *testing.T) {
	gone := matcher(t, "../../deploy/prometheus/alerts.yaml", `up\{job=~"([^"]+)"\}`)
	inhibiting := matcher(t, "../../deploy/prometheus/examples/alertmanager.yaml",
		`'job="([^"]+)"'`)
	nodes := map[string]any{
		"plain": map[string]any{},
		"other": map[string]any{"listen": map[string]any{"port": 7471}},
		"fixed": map[string]any{"listen": map[string]any{"address": "fd00::5"}},
	}
	for _, release := range []string{"zc-relay", "prod", "zc-relay-2"} {
		text, err := renderAs(t, release, map[string]any{
			"target":         map[string]any{"enabled": true, "nodes": nodes},
			"serviceMonitor": map[string]any{"enabled": true}})
		if err != nil {
			t.Fatal(err)
		}
		monitor, services := monitored(t, text)
		for _, service := range services {
			component := service.Labels["app.kubernetes.io/component"]
			for _, c := range []struct{ node, ip, target string }{
				{"plain", "10.0.0.5", "10.0.0.5:7470"},
				{"plain", "fd00::1", "[fd00::1]:7470"},
				{"other", "10.0.0.5", "10.0.0.5:7471"},
				{"fixed", "10.0.0.5", "[fd00::5]:7470"},
			} {
				labels := scraped(monitor, service, c.node, c.ip)
				job, target := labels["job"], labels["target"]
				if !gone.MatchString(job) {
					t.Errorf("%s: the job of the %s is %q: ZcRelayGone does not see it", release,
						component, job)
				}
				isTarget := component == "target"
				if inhibiting.MatchString(job) != isTarget {
					t.Errorf("%s: the job of the %s is %q for inhibitions", release, component, job)
				}
				if isTarget && target != c.target || !isTarget && target != "" {
					t.Errorf("%s: the %s of node %s has the label target %q", release, component,
						c.node, target)
				}
			}
		}
	}
}

// matcher returns the expression that a file compares a label with, anchored as Prometheus does.
func matcher(t *testing.T, file, pattern string) *regexp.Regexp {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(pattern).FindStringSubmatch(string(text))
	if match == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	return regexp.MustCompile("^(?:" + match[1] + ")$")
}

// monitored returns the ServiceMonitor and the services of rendered manifests.
func monitored(t *testing.T, text string) (monitor *monitoring.ServiceMonitor,
	services []*core.Service) {
	t.Helper()
	for _, o := range decode(t, text) {
		switch o := o.(type) {
		case *core.Service:
			services = append(services, o)
		case *monitoring.ServiceMonitor:
			monitor = o
		}
	}
	if monitor == nil || len(services) != 2 {
		t.Fatalf("the chart renders the monitor %v, and %d services", monitor, len(services))
	}
	return monitor, services
}

// scraped returns the labels of what Prometheus scrapes from a pod of a service: job is the name of
// the service, unless a relabeling replaces it.
func scraped(monitor *monitoring.ServiceMonitor, service *core.Service, node, ip string,
) map[string]string {
	labels := map[string]string{"job": service.Name, "__meta_kubernetes_pod_node_name": node,
		"__meta_kubernetes_pod_ip": ip}
	for name, value := range service.Labels {
		name = regexp.MustCompile("[^a-zA-Z0-9_]").ReplaceAllString(name, "_")
		labels["__meta_kubernetes_service_label_"+name] = value
	}
	for _, r := range monitor.Spec.Endpoints[0].RelabelConfigs {
		var values []string
		for _, name := range r.SourceLabels {
			values = append(values, labels[string(name)])
		}
		joined := strings.Join(values, ";")
		expression := regexp.MustCompile("^(?s:" + r.Regex + ")$")
		if match := expression.FindStringSubmatchIndex(joined); match != nil {
			labels[r.TargetLabel] = string(expression.ExpandString(nil, *r.Replacement, joined,
				match))
		}
	}
	return labels
}

// A pod that is killed while it drains fails the IO of its clients. Daemons end within a minute of
// their drain.
func TestPodsHaveTheTimeToDrain(t *testing.T) {
	shutdown := func(drain string) map[string]any {
		return map[string]any{"shutdown": map[string]any{"drain_timeout": drain}}
	}
	for name, c := range map[string]struct {
		values        map[string]any
		relay, target int64
	}{
		"defaults": {map[string]any{}, 85, 80},
		"longer": {map[string]any{"relay": map[string]any{"config": shutdown("1m30s")},
			"target": map[string]any{"config": shutdown("1500ms")}}, 165, 77},
		"of a node": {map[string]any{"relay": map[string]any{"nodes": map[string]any{
			"a": map[string]any{}, "b": shutdown("1h"), "c": shutdown("1m")}}}, 3675, 80},
		"infinite": {map[string]any{"target": map[string]any{"config": shutdown("infinite")}}, 85,
			86475},
		"given": {map[string]any{"terminationGracePeriodSeconds": 7}, 7, 7},
	} {
		values := c.values
		target, _ := values["target"].(map[string]any)
		if target == nil {
			target = map[string]any{}
		}
		target["enabled"] = true
		values["target"] = target
		text, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range decode(t, text) {
			set, ok := o.(*apps.DaemonSet)
			if !ok {
				continue
			}
			want := c.relay
			if strings.HasSuffix(set.Name, "-target") {
				want = c.target
			}
			if got := *set.Spec.Template.Spec.TerminationGracePeriodSeconds; got != want {
				t.Errorf("%s: %s has %d s, want %d", name, set.Name, got, want)
			}
		}
	}
}
