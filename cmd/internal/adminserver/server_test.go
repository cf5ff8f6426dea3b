// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig(address string) ServerConfig {
	return ServerConfig{Address: address, Status: testStatus, Log: zap.NewNop()}
}

func start(t *testing.T) *Server {
	t.Helper()
	return startWith(t, testConfig("127.0.0.1:0"))
}

func startWith(t *testing.T, c ServerConfig) *Server {
	t.Helper()
	s, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	response, err := http.Get("http://" + s.Address().String() + path)
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

func TestReadinessFollowsWhatItIsTold(t *testing.T) {
	s := start(t)
	if code, body := get(t, s, "/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "starting") {
		t.Errorf("at the start: %d %q", code, body)
	}
	s.SetReady(nil, "serving 1 of 2 volumes")
	if code, body := get(t, s, "/readyz"); code != http.StatusOK ||
		body != "ready\nserving 1 of 2 volumes\n" {
		t.Errorf("when ready: %d %q", code, body)
	}
	s.SetReady(errors.New("target is down"), "")
	if code, body := get(t, s, "/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "target is down") {
		t.Errorf("when not ready any more: %d %q", code, body)
	}
	if code, _ := get(t, s, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
}

func TestMetricsIncludeBuildAndWhatIsRegistered(t *testing.T) {
	s := start(t)
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "zc_test_total", Help: "x"})
	counter.Add(3)
	if err := s.Register(counter); err != nil {
		t.Fatal(err)
	}
	_, body := get(t, s, "/metrics")
	for _, want := range []string{"zc_test_total 3", "zc_build_info{", "go_goroutines"} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if err := s.Register(counter); err == nil {
		t.Error("the same metric was registered twice")
	}
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	s := start(t)
	if _, err := Listen(testConfig(s.Address().String())); err == nil ||
		!strings.Contains(err.Error(), s.Address().String()) {
		t.Errorf("second listener: %v", err)
	}
}
