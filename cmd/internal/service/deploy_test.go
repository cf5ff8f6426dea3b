// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
)

// known returns the labels of each metric of the daemons.
func known() map[string][]string {
	names := map[string][]string{
		adminserver.BuildInfoMetric: nil, service.CertificateExpiryMetric: nil,
	}
	for _, d := range metrics.Definitions() {
		names[d.Name] = d.Labels
		if d.Type != metrics.Histogram {
			continue
		}
		for _, suffix := range []string{"_sum", "_count"} {
			names[d.Name+suffix] = d.Labels
		}
		names[d.Name+"_bucket"] = append(slices.Clone(d.Labels), "le")
	}
	return names
}

var (
	// A metric with its label matchers. Names that rules record contain colons, and are not metrics
	// of the daemons.
	selector = regexp.MustCompile(`([a-zA-Z0-9_:]*\bzc_[a-z0-9_]+[a-zA-Z0-9_:]*)(?:\{([^}]*)\})?`)
	label    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
)

// check fails for every metric in expression that is neither the daemons' nor recorded, and for
// every label that the metric does not have. It returns the number of metrics.
func check(t *testing.T, where, expression string, recorded map[string]bool) (metrics int) {
	t.Helper()
	names := known()
	for _, match := range selector.FindAllStringSubmatch(expression, -1) {
		metrics++
		if recorded[match[1]] {
			continue
		}
		labels, ok := names[match[1]]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, match[1])
			continue
		}
		for _, asked := range label.FindAllStringSubmatch(quoted.ReplaceAllString(match[2], `""`),
			-1) {
			if asked[1] != "instance" && asked[1] != "job" && !slices.Contains(labels, asked[1]) {
				t.Errorf("%s: %s has no label %q, only %q", where, match[1], asked[1], labels)
			}
		}
	}
	return metrics
}

func TestRulesAskForMetricsThatTheDaemonsHave(t *testing.T) {
	type rule struct{ Record, Alert, Expr string }
	var rules []rule
	recorded := make(map[string]bool)
	files, err := filepath.Glob("../../../deploy/prometheus/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	for _, file := range files {
		var content struct {
			Groups []struct{ Rules []rule }
		}
		if err := yaml.Unmarshal(read(t, file), &content); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, group := range content.Groups {
			for _, r := range group.Rules {
				rules = append(rules, r)
				recorded[r.Record] = true
			}
		}
	}
	for _, r := range rules {
		if check(t, r.Record+r.Alert, r.Expr, recorded) == 0 && !strings.HasPrefix(r.Expr, "up{") {
			t.Errorf("%s: %s asks for no metric of the daemons", r.Record+r.Alert, r.Expr)
		}
	}
}

func TestTheDashboardAsksForMetricsThatTheDaemonsHave(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Title, Type string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal(read(t, "../../../deploy/grafana/zc-relay.json"),
		&dashboard); err != nil {
		t.Fatal(err)
	}
	var asked strings.Builder
	place := make(map[[2]int]string)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			asked.WriteString(target.Expr + "\n")
			if check(t, panel.Title, target.Expr, nil) == 0 {
				t.Errorf("%s: %s asks for no metric of the daemons", panel.Title, target.Expr)
			}
		}
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				if other := place[[2]int{x, y}]; other != "" {
					t.Fatalf("%s: the panel overlaps %s at %d, %d", panel.Title, other, x, y)
				}
				place[[2]int{x, y}] = panel.Title
			}
		}
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("%s: the panel asks for nothing", panel.Title)
		}
	}
	for _, metric := range []string{"zc_relay_throttled_seconds_total",
		"zc_relay_connected_queues", "zc_relay_channel_state", "zc_target_connected_queues",
		"zc_target_volume_state", "zc_target_volume_failures_total",
		"zc_relay_nbd_requests_total", "zc_relay_nbd_bytes_total", "zc_relay_nbd_connections"} {
		if !strings.Contains(asked.String(), metric+"{") {
			t.Errorf("no panel shows %s", metric)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if variable.Type == "query" {
			check(t, "variable "+variable.Name, variable.Query, nil)
		}
	}
}

func TestTheNamesThatAreCheckedAreFound(t *testing.T) {
	found := make(map[string]string)
	for _, match := range selector.FindAllStringSubmatch(`sum(rate(zc_relay_io_total{code!="A|B"}[1m])) / channel_op:zc_relay_io:rate1m`,
		-1) {
		found[match[1]] = match[2]
	}
	want := map[string]string{"zc_relay_io_total": `code!="A|B"`,
		"channel_op:zc_relay_io:rate1m": ""}
	if !maps.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
