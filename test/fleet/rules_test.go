// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// shipped is the folder with the rules and the scrape configuration.
var shipped = filepath.Join("..", "..", "deploy", "prometheus")

// installed is where the shipped scrape configuration expects the rules and the lists of daemons.
const installed = "/etc/prometheus/zc-relay"

// factor divides all times of the shipped files, so that an alert of a minute fires after 6 s.
const factor = 10

// period is a time in a rule or in the scrape configuration: how long a condition has to hold, the
// range of a rate, or an interval.
var period = regexp.MustCompile(`(\bfor: |\[|_interval: )([0-9]+)([smhd])\b`)

// shorten returns the text of a shipped file with all its times divided by factor.
func shorten(text string) string {
	return period.ReplaceAllStringFunc(text, func(found string) string {
		m := period.FindStringSubmatch(found)
		n, _ := strconv.Atoi(m[2]) // digits only
		unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour,
			"d": 24 * time.Hour}[m[3]]
		return fmt.Sprintf("%s%dms", m[1], (time.Duration(n) * unit / factor).Milliseconds())
	})
}

// installPrometheus writes shortened copies of the shipped files to a directory, and returns the
// path of the configuration.
func installPrometheus(t testing.TB, directory string) (config string) {
	t.Helper()
	for _, name := range []string{"alerts.yaml", "recording.yaml",
		filepath.Join("examples", "scrape.yaml")} {
		text, err := os.ReadFile(filepath.Join(shipped, name))
		if err != nil {
			t.Fatal(err)
		}
		config = filepath.Join(directory, filepath.Base(name))
		copied := strings.ReplaceAll(shorten(string(text)), installed, directory)
		if err := os.WriteFile(config, []byte(copied), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return config
}

func TestThePrometheusThatIsShippedIsShortened(t *testing.T) {
	testkit.RequireTools(t, "promtool")
	config := installPrometheus(t, t.TempDir())
	output, err := exec.Command("promtool", "check", "config", config).CombinedOutput()
	if err != nil {
		t.Errorf("promtool check config: %v\n%s", err, output)
	}
}

func TestAShortenedRuleDiffersOnlyInItsTimes(t *testing.T) {
	for _, name := range []string{"alerts.yaml", "recording.yaml"} {
		text, err := os.ReadFile(filepath.Join(shipped, name))
		if err != nil {
			t.Fatal(err)
		}
		before, after := rulesOf(t, string(text)), rulesOf(t, shorten(string(text)))
		if len(before) == 0 || len(before) != len(after) {
			t.Fatalf("%s: %d rules became %d", name, len(before), len(after))
		}
		for i, was := range before {
			is := after[i]
			if was.For != "" && parse(t, was.For) != factor*parse(t, is.For) {
				t.Errorf("%s: for %s became %s", was.Alert, was.For, is.For)
			}
			long, short := ranges.FindAllString(was.Expr, -1), ranges.FindAllString(is.Expr, -1)
			for j := range long {
				if parse(t, long[j]) != factor*parse(t, short[j]) {
					t.Errorf("%s%s: %s became %s", was.Alert, was.Record, long[j], short[j])
				}
			}
			was.For, is.For = "", ""
			was.Expr = ranges.ReplaceAllString(was.Expr, "")
			is.Expr = ranges.ReplaceAllString(is.Expr, "")
			if !reflect.DeepEqual(was, is) {
				t.Errorf("%+v became %+v", was, is)
			}
		}
	}
}

var ranges = regexp.MustCompile(`\[\w+\]`)

// rule is a rule of Prometheus.
type rule struct {
	Alert, Record, Expr string
	For                 string
	Labels, Annotations map[string]string
}

func rulesOf(t *testing.T, text string) (rules []rule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules
}

// parse returns the time of a rule, which may be a range in brackets.
func parse(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(strings.Trim(text, "[]"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}
