package fleet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/tooltest"
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
	tooltest.Require(t, "promtool")
	config := installPrometheus(t, t.TempDir())
	output, err := exec.Command("promtool", "check", "config", config).CombinedOutput()
	if err != nil {
		t.Errorf("promtool check config: %v\n%s", err, output)
	}
}

func TestAShortenedRuleDiffersOnlyInItsTimes(t *testing.T) {
	type rule struct {
		Alert, Record, Expr string
		For                 string
		Labels, Annotations map[string]string
	}
	type groups struct {
		Groups []struct{ Rules []rule }
	}
	for _, name := range []string{"alerts.yaml", "recording.yaml"} {
		text, err := os.ReadFile(filepath.Join(shipped, name))
		if err != nil {
			t.Fatal(err)
		}
		var before, after groups
		for _, f := range []struct {
			text string
			into *groups
		}{{string(text), &before}, {shorten(string(text)), &after}} {
			decoder := yaml.NewDecoder(bytes.NewReader([]byte(f.text)))
			if err := decoder.Decode(f.into); err != nil {
				t.Fatal(err)
			}
		}
		ranges := regexp.MustCompile(`\[\w+\]`)
		for i, group := range before.Groups {
			for j, was := range group.Rules {
				is := after.Groups[i].Rules[j]
				if was.For != "" && parse(t, was.For) != factor*parse(t, is.For) {
					t.Errorf("%s: for %s became %s", was.Alert, was.For, is.For)
				}
				long, short := ranges.FindAllString(was.Expr, -1),
					ranges.FindAllString(is.Expr, -1)
				for k := range long {
					if parse(t, strings.Trim(long[k], "[]")) !=
						factor*parse(t, strings.Trim(short[k], "[]")) {
						t.Errorf("%s%s: %s became %s", was.Alert, was.Record, long[k], short[k])
					}
				}
				if ranges.ReplaceAllString(was.Expr, "") != ranges.ReplaceAllString(is.Expr, "") ||
					fmt.Sprint(was.Labels, was.Annotations) != fmt.Sprint(is.Labels, is.Annotations) {
					t.Errorf("%s%s became %+v", was.Alert, was.Record, is)
				}
			}
		}
	}
}

func parse(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
