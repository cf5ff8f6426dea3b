// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// labels are those of an alert or of a sample.
type labels map[string]string

// matches reports whether l has all labels of pattern.
func (l labels) matches(pattern labels) bool {
	for name, value := range pattern {
		if l[name] != value {
			return false
		}
	}
	return true
}

func (l labels) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		if !strings.HasPrefix(name, "__") && name != "alertname" && name != "alertstate" {
			pairs = append(pairs, name+"="+l[name])
		}
	}
	return l["alertname"] + "{" + strings.Join(pairs, ", ") + "}"
}

// prometheus is a running Prometheus.
type prometheus struct {
	f       *fleet
	address string
}

// startPrometheus starts a Prometheus with the shipped configuration, and lists all daemons as that
// says.
func (f *fleet) startPrometheus() {
	f.t.Helper()
	directory := filepath.Join(f.dir, "prometheus")
	for _, sub := range []string{"relays", "targets"} {
		if err := os.MkdirAll(filepath.Join(directory, sub), 0o700); err != nil {
			f.t.Fatal(err)
		}
	}
	config := installPrometheus(f.t, directory)
	var relays, targets strings.Builder
	for _, r := range f.relays {
		fmt.Fprintf(&relays, "- targets: [%q]\n", r.instance())
	}
	for _, g := range f.targets {
		fmt.Fprintf(&targets, "- targets: [%q]\n  labels: {target: %q}\n", g.instance(),
			g.control())
	}
	for path, text := range map[string]string{
		"relays/rack-1.yaml": relays.String(), "targets/rack-1.yaml": targets.String(),
	} {
		if err := os.WriteFile(filepath.Join(directory, path), []byte(text), 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
	address := netip.AddrPortFrom(testkit.Address(f.t), 9090).String()
	process := testkit.Start(f.t, exec.Command("prometheus", "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(directory, "data"),
		"--web.listen-address="+address, "--log.level=warn"))
	f.prometheus = &prometheus{f, address}
	daemons := len(f.relays) + len(f.targets)
	f.await("Prometheus scrapes all daemons", func() bool {
		if process.HasEnded() {
			f.t.Fatal("Prometheus has exited")
		}
		up, err := f.prometheus.query("up == 1")
		return err == nil && len(up) == daemons
	})
}

// query returns the labels of all samples that a query finds.
func (p *prometheus) query(query string) (found []labels, err error) {
	text, err := p.f.fetch("http://" + p.address + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Data  struct {
			Result []struct{ Metric labels }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("query %s: %s", query, answer.Error)
	}
	for _, result := range answer.Data.Result {
		found = append(found, result.Metric)
	}
	return found, nil
}

// ofTheMachine is an alert that also fires if other work takes the processors from the fleet.
const ofTheMachine = "ZcRelayLatencyHigh"

// active returns the alerts that fire now, or are about to if their conditions last.
func (p *prometheus) active() []labels {
	p.f.t.Helper()
	found, err := p.query(fmt.Sprintf("ALERTS{alertname!=%q}", ofTheMachine))
	if err != nil {
		p.f.t.Fatal(err)
	}
	return found
}

// firedSince returns the alerts that have fired at any time since then.
func (p *prometheus) firedSince(start time.Time) []labels {
	p.f.t.Helper()
	found, err := p.query(fmt.Sprintf(`max_over_time(ALERTS{alertstate="firing"}[%dms])`,
		time.Since(start).Milliseconds()))
	if err != nil {
		p.f.t.Fatal(err)
	}
	return found
}

// fetch returns the body of a page.
func (f *fleet) fetch(url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(f.ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// counts are the sums of a relay's metrics by name and channel.
type counts map[[2]string]float64

// scrape returns the counts of a relay.
func (f *fleet) scrape(r *relay) (counts, error) {
	text, err := f.fetch("http://" + r.instance() + "/metrics")
	if err != nil {
		return nil, err
	}
	sums := counts{}
	for line := range strings.Lines(string(text)) {
		series, value, found := strings.Cut(strings.TrimSpace(line), " ")
		name, rest, hasLabels := strings.Cut(series, "{")
		if !found || !hasLabels || strings.HasPrefix(line, "#") {
			continue
		}
		_, rest, isOfChannel := strings.Cut(rest, `channel="`)
		label, _, _ := strings.Cut(rest, `"`)
		if number, err := strconv.ParseFloat(value, 64); err == nil && isOfChannel {
			sums[[2]string{name, label}] += number
		}
	}
	return sums, nil
}
