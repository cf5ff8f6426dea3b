// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// A Prometheus that ingests native histograms does not store the classic ones beside them.
func TestLatencyQueriesFindDataWithEitherKindOfHistogram(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "prometheus")
	queries := latencyQueries(t)
	// A slow volume, so that the IO leaves the processors to those who are waited for.
	c := startFaultyChain(t, "volume:any:delay=5ms")
	c.startIO(bench(4)...)
	for name, flags := range map[string][]string{
		"classic": nil, "native": {"--enable-feature=native-histograms"},
	} {
		t.Run(name, func(t *testing.T) {
			server := startPrometheus(t, flags, opsAddress(t, c.relay),
				opsAddress(t, c.target))
			for _, query := range queries {
				testkit.Eventually(t, "data for "+query, func() bool { return server.finds(t, query) })
			}
		})
	}
}

// latencyQueries returns the queries of the dashboard, the alerts, and the recording rules that
// read histograms, without conditions on their result.
func latencyQueries(t *testing.T) []string {
	t.Helper()
	var queries []string
	dashboard, err := os.ReadFile(filepath.Join("..", "..", "deploy", "grafana", "zc-relay.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllSubmatch(dashboard, -1) {
		var query string
		if err := json.Unmarshal(m[1], &query); err != nil {
			t.Fatal(err)
		}
		query = regexp.MustCompile(`"\$\w+"`).ReplaceAllString(query, `".+"`)
		queries = append(queries, strings.ReplaceAll(query, "$__rate_interval", "5s"))
	}
	for _, file := range []string{"alerts.yaml", "recording.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "prometheus", file))
		if err != nil {
			t.Fatal(err)
		}
		var rules struct {
			Groups []struct {
				Rules []struct{ Expr string }
			}
		}
		if err := yaml.Unmarshal(text, &rules); err != nil {
			t.Fatal(err)
		}
		for _, group := range rules.Groups {
			for _, rule := range group.Rules {
				query := regexp.MustCompile(` > [0-9.]+\n?$`).ReplaceAllString(rule.Expr, "")
				queries = append(queries,
					regexp.MustCompile(`\[\w+\]`).ReplaceAllString(query, "[5s]"))
			}
		}
	}
	var latency []string
	for _, query := range queries {
		if strings.Contains(query, "latency") {
			latency = append(latency, query)
		}
	}
	const known = 8
	if len(latency) != known {
		t.Fatalf("found %d queries of latencies instead of %d: %q", len(latency), known, latency)
	}
	return latency
}

// prometheus is a running server.
type prometheus struct{ address string }

func startPrometheus(t *testing.T, flags []string, targets ...string) prometheus {
	t.Helper()
	directory := t.TempDir()
	config := filepath.Join(directory, "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: 200ms}\nscrape_configs:\n"+
		"- job_name: zc-relay\n  static_configs: [{targets: [%s]}]\n", strings.Join(targets, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := netip.AddrPortFrom(testkit.Address(t), 9090).String()
	server := exec.Command("prometheus", append([]string{"--config.file=" + config,
		"--storage.tsdb.path=" + filepath.Join(directory, "data"),
		"--web.listen-address=" + address, "--log.level=error"}, flags...)...)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	return prometheus{address}
}

// finds reports whether a query has a result that is a number.
func (p prometheus) finds(t *testing.T, query string) bool {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Get("http://" + p.address + "/api/v1/query?query=" +
		url.QueryEscape(query))
	if err != nil {
		return false // it is still starting
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Value [2]any
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return false
	}
	if answer.Error != "" {
		t.Fatalf("query %s: %s", query, answer.Error)
	}
	for _, result := range answer.Data.Result {
		if value, _ := result.Value[1].(string); value != "NaN" && value != "" {
			return true
		}
	}
	return false
}
