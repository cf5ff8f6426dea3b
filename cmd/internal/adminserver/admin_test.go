// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/cmd/internal/audit"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/internal/tokenfile"
)

func testStatus() any { return map[string]string{"schema": "test/1"} }

// startAdmin serves on address and returns a client of it.
func startAdmin(t *testing.T,
	address string) (*Admin, *http.Client, zap.AtomicLevel, *observer.ObservedLogs) {
	t.Helper()
	level := zap.NewAtomicLevelAt(zap.InfoLevel)
	core, logs := observer.New(zap.DebugLevel)
	a, err := ListenAdmin(AdminConfig{Address: address, TokenFile: writeToken(t, testToken),
		Status: testStatus, Level: level, Log: zap.New(core), Audit: audit.New(zap.New(core))})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		var d net.Dialer
		return d.DialContext(ctx, a.Address().Network(), a.Address().String())
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := a.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return a, &http.Client{Transport: withToken{transport}}, level, logs
}

const testToken = "0123456789abcdef"

// writeToken returns a file with a token.
func writeToken(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withToken sends the token with requests that have none.
type withToken struct{ inner http.RoundTripper }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") == "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", tokenfile.Header(testToken))
	}
	return w.inner.RoundTrip(r)
}

func do(t *testing.T, client *http.Client, method, url, body string,
	header ...string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			request.Host = header[i+1]
		}
	}
	response, err := client.Do(request)
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

func TestAdministrationIsForThisMachineOnly(t *testing.T) {
	for address, want := range map[string]string{
		"0.0.0.0:0":                    "not a loopback address",
		"[::]:0":                       "not a loopback address",
		"192.0.2.1:9472":               "not a loopback address",
		":9472":                        "neither unix:PATH nor IP:PORT",
		"localhost:9472":               "neither unix:PATH nor IP:PORT",
		"/run/admin.sock":              "write a path as unix:/run/admin.sock",
		"unix:/nonexistent/admin.sock": "its directory does not exist",
	} {
		if _, err := ListenAdmin(AdminConfig{Address: address, Log: zap.NewNop()}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestTheLogLevelIsReadAndSet(t *testing.T) {
	for name, address := range map[string]string{"loopback": "127.0.0.1:0", "Unix socket": "unix:" +
		filepath.Join(t.TempDir(), "admin.sock")} {
		t.Run(name, func(t *testing.T) {
			_, client, level, logs := startAdmin(t, address)
			url := "http://localhost/loglevel"
			if code, body := do(t, client, http.MethodGet, url, ""); code != http.StatusOK ||
				strings.TrimSpace(body) != `{"level":"info"}` {
				t.Errorf("GET answers %d %q", code, body)
			}
			if code, body := do(t, client, http.MethodPut, url,
				`{"level":"debug"}`); code != http.StatusOK || level.Level() != zap.DebugLevel {
				t.Errorf("PUT answers %d %q, the level is %v", code, body, level)
			}
			if logs.FilterMessage("log level changed").Len() != 1 {
				t.Error("the change is not logged")
			}
			const form = "application/x-www-form-urlencoded" // what curl -d announces
			for body, want := range map[string]zapcore.Level{
				`{"level":"warn"}`: zap.WarnLevel, "level=debug": zap.DebugLevel,
			} {
				code, answer := do(t, client, http.MethodPut, url, body, "Content-Type", form)
				if code != http.StatusOK || level.Level() != want {
					t.Errorf("PUT of %s answers %d %q, the level is %v", body, code, answer,
						level.Level())
				}
			}
			level.SetLevel(zap.DebugLevel)
			if code, _ := do(t, client, http.MethodPut, url,
				`{"level":"loud"}`); code != http.StatusBadRequest ||
				level.Level() != zap.DebugLevel {
				t.Errorf("PUT of an unknown level answers %d, the level is %v", code, level)
			}
			if code, _ := do(t, client, http.MethodPost, url,
				`{"level":"info"}`); code != http.StatusMethodNotAllowed {
				t.Errorf("POST answers %d", code)
			}
		})
	}
}

func TestPagesOfOtherSitesCannotAdminister(t *testing.T) {
	_, client, level, _ := startAdmin(t, "127.0.0.1:0")
	url := "http://127.0.0.1/loglevel"
	for name, header := range map[string][]string{
		"another origin":                {"Origin", "http://evil.example"},
		"cross-site by its own account": {"Sec-Fetch-Site", "cross-site"},
		"another host":                  {"Host", "evil.example:80"},
	} {
		if code, _ := do(t, client, http.MethodPut, url, `{"level":"error"}`,
			header...); code != http.StatusForbidden {
			t.Errorf("%s: PUT answers %d", name, code)
		}
	}
	if level.Level() != zap.InfoLevel {
		t.Errorf("the level is %v", level)
	}
	if code, _ := do(t, client, http.MethodGet, "http://127.0.0.1/debug/pprof/goroutine?debug=1",
		"", "Host", "evil.example"); code != http.StatusForbidden {
		t.Errorf("a profile for another host: %d", code)
	}
}

func TestProfilesAreServedWithinBounds(t *testing.T) {
	_, client, _, _ := startAdmin(t, "127.0.0.1:0")
	base := "http://127.0.0.1/debug/pprof/"
	for path, want := range map[string]string{"": "goroutine",
		"goroutine?debug=1": "goroutine profile", "cmdline": os.Args[0],
		"trace?seconds=0.05": "trace"} {
		if code, body := do(t, client, http.MethodGet, base+path, ""); code != http.StatusOK ||
			!strings.Contains(body, want) {
			t.Errorf("%s answers %d, %d bytes", path, code, len(body))
		}
	}
	for _, seconds := range []string{"301", "0", "-1", "NaN", "x", strings.Repeat("x", 8<<10)} {
		for _, kind := range []string{"profile", "trace"} {
			if code, text := do(t, client, http.MethodGet, base+kind+"?seconds="+seconds,
				""); code != http.StatusBadRequest || len(text) > 1024 {
				t.Errorf("%s of %.10s seconds answers %d with %d bytes", kind, seconds, code,
					len(text))
			}
		}
	}
}

func TestBothListenersServeTheStatus(t *testing.T) {
	a, client, _, _ := startAdmin(t, "127.0.0.1:0")
	s := start(t)
	_, public := get(t, s, "/status")
	_, private := do(t, client, http.MethodGet, "http://"+a.Address().String()+"/status", "")
	for name, text := range map[string]string{"public": public, "admin": private} {
		var document map[string]string
		if err := json.Unmarshal([]byte(text), &document); err != nil ||
			document["schema"] != "test/1" {
			t.Errorf("%s: %q, error %v", name, text, err)
		}
	}
	for _, path := range []string{"/debug/pprof/", "/loglevel"} {
		if code, _ := get(t, s, path); code != http.StatusNotFound {
			t.Errorf("the public listener answers %s with %d", path, code)
		}
	}
}

func TestThePageLoadsNothingFromElsewhere(t *testing.T) {
	s := start(t)
	code, body := get(t, s, "/")
	if code != http.StatusOK || !strings.Contains(body, "<!doctype html>") {
		t.Fatalf("the page: %d", code)
	}
	for _, outside := range []string{"http://", "https://", "//cdn", "@import", "src=\"http"} {
		if at := strings.Index(strings.ReplaceAll(body, "http://www.w3.org/2000/svg", ""),
			outside); at >= 0 {
			t.Errorf("the page has %q", outside)
		}
	}
	if code, _ := get(t, s, "/nothing"); code != http.StatusNotFound {
		t.Errorf("an unknown path answers %d", code)
	}
}

func TestMoreRequestsThanTheLimitAreTurnedAway(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{})
	handler := limitRequests(1, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		fmt.Fprint(w, "done")
	}))
	server := newHTTPServer(serverConfig{name: "test", listener: mustListen(t), handler: handler,
		log: zap.NewNop()})
	url := "http://" + server.Address().String()
	first := make(chan int)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	go func() {
		code, _ := do(t, client, http.MethodGet, url, "")
		first <- code
	}()
	<-entered
	if code, _ := do(t, client, http.MethodGet, url, ""); code != http.StatusServiceUnavailable {
		t.Errorf("the second answers %d", code)
	}
	close(release)
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first answers %d", code)
	}
	if err := server.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

func mustListen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
