package e2e

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// opsAddress is where a daemon serves metrics, as it logs.
func opsAddress(t testing.TB, p *process) string {
	t.Helper()
	p.awaitLog("serving metrics and health")
	_, rest, _ := strings.Cut(p.stderr.String(), "serving metrics and health")
	_, rest, found := strings.Cut(rest, `"address": "`)
	if !found {
		t.Fatal("the address of the metrics is not logged")
	}
	address, _, _ := strings.Cut(rest, `"`)
	return address
}

func get(t testing.TB, p *process, path string) (code int, body string) {
	t.Helper()
	response, err := http.Get("http://" + opsAddress(t, p) + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

func (c *chain) scrape(p *process) string {
	c.t.Helper()
	_, body := get(c.t, p, "/metrics")
	return body
}

// sumMetric adds up all series of a metric.
func sumMetric(text, name string) float64 {
	var sum float64
	for line := range strings.Lines(text) {
		series, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); !found || bare != name {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			sum += v
		}
	}
	return sum
}

func mustContain(t testing.TB, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestMetricsAndHealthTellWhatHappens(t *testing.T) {
	c := startObservedChain(t, "disk=memory:64MiB")
	eventually(t, "the relay is ready", func() bool { code, _ := get(t, c.relay, "/readyz"); return code == http.StatusOK })
	if code, _ := get(t, c.relay, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	c.mustRun("bench", "--rw", "randread", "--block-size", "4KiB", "--queues", "1", "--queue-depth", "4", "--run-limit-operation-count", "500", "--warmup", "0s")
	mustContain(t, c.scrape(c.relay),
		`zc_relay_io_total{channel="03:00.0/b1:00.0/storage_zero_copy_comch",code="SUCCESS",op="read",queue="0"} 500`,
		`zc_relay_io_bytes_total{channel="03:00.0/b1:00.0/storage_zero_copy_comch",op="read",queue="0"} 2.048e+06`,
		`zc_relay_io_latency_seconds_count{channel="03:00.0/b1:00.0/storage_zero_copy_comch",op="read",queue="0"} 500`,
		`zc_relay_io_in_flight{channel="03:00.0/b1:00.0/storage_zero_copy_comch",queue="0"} 0`,
		`zc_relay_poll_total{outcome="hit",worker="0"}`,
		`zc_relay_late_wakeups_total{worker="0"} 0`,
		`zc_relay_sessions{channel="03:00.0/b1:00.0/storage_zero_copy_comch"} 0`,
	)
	mustContain(t, c.scrape(c.target),
		`zc_target_io_total{code="SUCCESS",op="read",queue="0",volume="disk"} 500`,
		`zc_target_io_latency_seconds_count{op="read",queue="0",volume="disk"} 500`,
	)
	c.target.signal(syscall.SIGKILL)
	eventually(t, "the relay is not ready without its target", func() bool {
		code, _ := get(t, c.relay, "/readyz")
		return code == http.StatusServiceUnavailable
	})
}
