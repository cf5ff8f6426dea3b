// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

const (
	rulesDirectory = "../../../deploy/prometheus/"
	scenariosFile  = rulesDirectory + "tests/scenarios.yaml"
)

// The rules are tested with what the daemons show when they have started, so that no rule relies
// on series that appear only with the condition that it should notice.
func TestRulesFireAsTheirScenariosSay(t *testing.T) {
	testkit.RequireTools(t, "promtool")
	var content struct{ Tests []scenario }
	readYAML(t, scenariosFile, &content)
	scrapes := scrapeDaemons(t, rulesText(t))
	used := map[string]any{"rule_files": ruleFiles(t), "evaluation_interval": "30s"}
	var tests []any
	for i := range content.Tests {
		tests = append(tests, content.Tests[i].test(t, scrapes))
	}
	used["tests"] = tests
	text, err := yaml.Marshal(used)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// Each alert has a scenario in which it fires, and one in which it does not.
func TestEveryAlertHasItsScenarios(t *testing.T) {
	var content struct{ Tests []scenario }
	readYAML(t, scenariosFile, &content)
	fires, isSilent := make(map[string]bool), make(map[string]bool)
	for _, s := range content.Tests {
		for _, expected := range s.Alerts {
			if len(expected.Alerts) > 0 {
				fires[expected.Name] = true
			} else {
				isSilent[expected.Name] = true
			}
		}
	}
	for _, alert := range alerts(t) {
		if !fires[alert.Alert] || !isSilent[alert.Alert] {
			t.Errorf("%s: fires in a scenario: %t; silent in one: %t", alert.Alert,
				fires[alert.Alert], isSilent[alert.Alert])
		}
		delete(fires, alert.Alert)
	}
	for name := range fires {
		t.Errorf("there are scenarios for an alert %s that does not exist", name)
	}
}

// filledIn matches a label in the text of an alert.
var filledIn = regexp.MustCompile(`\{\{ \$labels\.(\w+) \}\}`)

// alertSections makes a section of the reference for each alert.
func alertSections(t *testing.T) string {
	var text strings.Builder
	for _, alert := range alerts(t) {
		summary := strings.TrimPrefix(alert.Annotations["summary"], "{{ $labels.instance }}: ")
		after := ""
		if alert.For != "" {
			after = ", after " + alert.For
		}
		fmt.Fprintf(&text, "## %s\n\n*%s*%s: %s.\n\n%s\n\n```promql\n%s\n```\n\n", alert.Alert,
			alert.Labels["severity"], after, readable(summary),
			readable(alert.Annotations["description"]), strings.TrimSpace(alert.Expr))
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// readable replaces what Prometheus fills in.
func readable(text string) string {
	text = filledIn.ReplaceAllString(text, "*$1*")
	return regexp.MustCompile(`\{\{ \$value[^}]*\}\}`).ReplaceAllString(text, "*N*")
}

// The example for Alertmanager names alerts that exist, and labels that these have.
func TestTheExampleForAlertmanagerFitsTheAlerts(t *testing.T) {
	var example struct {
		Route struct {
			GroupBy []string `yaml:"group_by"`
		}
		Inhibitions []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string
		} `yaml:"inhibit_rules"`
	}
	readYAML(t, rulesDirectory+"examples/alertmanager.yaml", &example)
	labels := labelsOfAlerts(t)
	for _, name := range []string{"ZcRelayTargetDown", "ZcRelayRedundancyLost",
		"ZcRelayTargetUnstable", "ZcRelayIOErrors", "ZcRelayIOStuck"} {
		if !labels[name]["target"] || !slices.Contains(example.Route.GroupBy, "target") {
			t.Errorf("%s has the labels %v and is grouped by %v", name, labels[name],
				example.Route.GroupBy)
		}
	}
	for _, rule := range example.Inhibitions {
		// The scrape configuration gives a target its label.
		fromScrape := slices.Contains(rule.Source, `job="zc-relay-target"`)
		for _, name := range slices.Concat(alertsIn(rule.Source), alertsIn(rule.Target)) {
			if labels[name] == nil {
				t.Errorf("%v: there is no alert %s", rule, name)
			}
			for _, label := range rule.Equal {
				if !labels[name][label] && !(fromScrape && name == "ZcRelayGone") {
					t.Errorf("%v: %s has no label %s", rule, name, label)
				}
			}
		}
	}
	if len(example.Inhibitions) == 0 {
		t.Error("there are no inhibitions")
	}
}

// alertsIn returns the names of alerts in matchers.
func alertsIn(matchers []string) []string {
	return regexp.MustCompile(`Zc\w+`).FindAllString(strings.Join(matchers, " "), -1)
}

// labelsOfAlerts returns the labels that each alert has in the scenarios.
func labelsOfAlerts(t *testing.T) map[string]map[string]bool {
	t.Helper()
	var content struct{ Tests []scenario }
	readYAML(t, scenariosFile, &content)
	all := make(map[string]map[string]bool)
	for _, s := range content.Tests {
		for _, expected := range s.Alerts {
			for _, alert := range expected.Alerts {
				all[expected.Name] = make(map[string]bool)
				for label := range alert.Labels {
					all[expected.Name][label] = true
				}
			}
		}
	}
	return all
}

// scenario is a test for promtool that begins with what daemons show when they have started.
type scenario struct {
	Name string `yaml:"name"`
	// Daemons are "relay", "target", and "gateway".
	Daemons []string `yaml:"daemons"`
	// Changes holds the values of series that do not stay as they are. Labels that tell the series
	// apart are enough.
	Changes map[string]string `yaml:"changes"`
	// Later holds series that appear in the scenario, for instance with the first session.
	Later       map[string]string `yaml:"later"`
	Interval    string            `yaml:"interval"`
	Alerts      []expectedAlerts  `yaml:"alert_rule_test"`
	Expressions []any             `yaml:"promql_expr_test"`
}

type expectedAlerts struct {
	At     string `yaml:"eval_time"`
	Name   string `yaml:"alertname"`
	Alerts []struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	} `yaml:"exp_alerts"`
}

// samples is more than any scenario looks at.
const samples = 240

// test returns the scenario as promtool understands it.
func (s *scenario) test(t *testing.T, scrapes map[string]map[string]string) map[string]any {
	t.Helper()
	values := make(map[string]string)
	for _, daemon := range s.Daemons {
		for series, value := range scrapes[daemon] {
			values[series] = fmt.Sprintf("%sx%d", value, samples)
		}
	}
	for described, changed := range s.Changes {
		found := 0
		for series := range values {
			if matches(series, described) {
				values[series] = changed
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s: %d series of daemons that have started match %s: %q", s.Name, found,
				described, slices.Sorted(maps.Keys(values)))
		}
	}
	for series, later := range s.Later {
		if _, exists := values[series]; exists {
			t.Errorf("%s: %s is there from the start", s.Name, series)
		}
		values[series] = later
	}
	var input []map[string]string
	for _, series := range slices.Sorted(maps.Keys(values)) {
		input = append(input, map[string]string{"series": series, "values": values[series]})
	}
	return map[string]any{"name": s.Name, "interval": s.Interval, "input_series": input,
		"alert_rule_test": s.Alerts, "promql_expr_test": s.Expressions}
}

var labelPair = regexp.MustCompile(`[a-z_]+="[^"]*"`)

// matches reports whether a series has the name and the labels that describe it.
func matches(series, described string) bool {
	name, labels, _ := strings.Cut(described, "{")
	is, has, _ := strings.Cut(series, "{")
	if is != name {
		return false
	}
	all := labelPair.FindAllString(has, -1)
	for _, wanted := range labelPair.FindAllString(labels, -1) {
		if !slices.Contains(all, wanted) {
			return false
		}
	}
	return true
}

// places are the labels that Prometheus adds to what it scrapes from each daemon.
var places = map[string]string{
	"relay":   `instance="dpu",job="zc-relay"`,
	"target":  `instance="storage",job="zc-relay-target"`,
	"gateway": `instance="host",job="zc-relay-nbd"`,
}

// scrapeDaemons starts a relay, a target, and a gateway, and returns the values of all their series
// whose metrics the text names, by series. The relay has channel a, whose second target is silent,
// and channel b.
func scrapeDaemons(t *testing.T, text string) map[string]map[string]string {
	t.Helper()
	s := newSite(t)
	s.backend += ",shared=fenced-by-operator"
	silent, err := net.Listen("tcp", testkit.Endpoint(t).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	s.configure("info")
	s.target = spawn(t, []string{"ZC_TARGET__OPERATIONS__LISTEN=127.0.0.1:0"}, "target",
		"--config", s.path("target.yaml"))
	var address []byte
	testkit.Eventually(t, "the target listens", func() bool {
		address, err = os.ReadFile(s.path("target.address"))
		return err == nil
	})
	serving := strings.TrimSpace(string(address))
	config := fmt.Sprintf(`comch: {directory: %q}
operations: {listen: '127.0.0.1:0'}
channels:
- {name: a, device: d, representor: r, targets: [%q, %q], volume: disk}
- {name: b, device: d, representor: r, target: %q, volume: disk}
`, s.path("comch"), serving, silent.Addr(), serving)
	if err := os.WriteFile(s.path("relay.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s.relay = spawn(t, nil, "zc-relay", "run", "--config", s.path("relay.yaml"))
	testkit.Eventually(t, "both channels are ready", func() bool {
		return strings.Count(scrape(t, s.relay), "zc_relay_target_ready{") == 2 &&
			!regexp.MustCompile(`(?m)^zc_relay_target_ready\{.* 0$`).MatchString(scrape(t, s.relay))
	})
	relay, target := scrape(t, s.relay), scrape(t, s.target)
	gateway := spawn(t, nil, "initiator", "nbd", "--emulated-dir", s.path("comch"),
		"--command-channel-name", "a", "--device", "r", "--export", "disk", "--socket",
		s.path("nbd.sock"), "--metrics-listen", "127.0.0.1:0")
	gateway.AwaitLog("serving NBD clients")
	names := strings.NewReplacer(serving, "10.0.0.5:7470", silent.Addr().String(), "10.0.0.6:7470")
	return map[string]map[string]string{
		"relay":   seriesOf(names.Replace(relay), places["relay"], text),
		"target":  seriesOf(names.Replace(target), places["target"], text),
		"gateway": seriesOf(names.Replace(scrape(t, gateway)), places["gateway"], text),
	}
}

var servedAt = regexp.MustCompile(`serving metrics and health\s*\{.*?"address": "([^"]+)"`)

func scrape(t *testing.T, p *testkit.Process) string {
	t.Helper()
	p.AwaitLog("serving metrics and health")
	address := servedAt.FindStringSubmatch(p.Stderr.String())
	if address == nil {
		t.Fatalf("the log of %s does not say where its metrics are", p.Name)
	}
	response, err := http.Get("http://" + address[1] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return string(text)
}

var scrapedLine = regexp.MustCompile(`(?m)^(zc_[a-z_]+)(?:\{(.*)\})? (\S+)$`)

// seriesOf returns the values in a scrape, by series, of the metrics that text names.
func seriesOf(scraped, place, text string) map[string]string {
	all := make(map[string]string)
	for _, match := range scrapedLine.FindAllStringSubmatch(scraped, -1) {
		name, labels, value := match[1], match[2], match[3]
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(text) {
			continue
		}
		if labels != "" {
			labels += ","
		}
		all[name+"{"+labels+place+"}"] = value
	}
	return all
}

type alertRule struct {
	Alert       string
	Record      string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

// alerts returns the alerts that are shipped.
func alerts(t *testing.T) []alertRule {
	t.Helper()
	return slices.DeleteFunc(rules(t), func(r alertRule) bool { return r.Alert == "" })
}

func rules(t *testing.T) []alertRule {
	t.Helper()
	var all []alertRule
	for _, file := range ruleFiles(t) {
		var content struct {
			Groups []struct{ Rules []alertRule }
		}
		readYAML(t, file, &content)
		for _, group := range content.Groups {
			all = append(all, group.Rules...)
		}
	}
	return all
}

// rulesText returns the expressions of all rules.
func rulesText(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for _, r := range rules(t) {
		text.WriteString(r.Expr + "\n")
	}
	return text.String()
}

func ruleFiles(t *testing.T) []string {
	t.Helper()
	directory, err := filepath.Abs(rulesDirectory)
	if err != nil {
		t.Fatal(err)
	}
	return []string{filepath.Join(directory, "alerts.yaml"),
		filepath.Join(directory, "recording.yaml")}
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal(read(t, file), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
