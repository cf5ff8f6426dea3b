// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"

	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// startWeb serves with a web configuration file, and returns the directory of the file, in which
// there are certificates.
func startWeb(t *testing.T, content string) (s *Server, web *webconfig.File, directory string) {
	t.Helper()
	directory = t.TempDir()
	mutualtlstest.NewAuthority(t).Write(directory, []string{"127.0.0.1", "prometheus"})
	file := filepath.Join(directory, "web.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	web, err := webconfig.Load(file, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	config := testConfig("127.0.0.1:0")
	config.Web = web
	return startWith(t, config), web, directory
}

func hashOf(t *testing.T, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

// secureClient returns a client that trusts the authority in directory.
func secureClient(t *testing.T, directory string, config *tls.Config) *http.Client {
	t.Helper()
	authority, err := os.ReadFile(filepath.Join(directory, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	config.RootCAs = x509.NewCertPool()
	config.RootCAs.AppendCertsFromPEM(authority)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config,
		DisableKeepAlives: true}, Timeout: testkit.Patience}
}

func TestUsersNeedTheirPassword(t *testing.T) {
	s, web, directory := startWeb(t, "basic_auth_users: {prometheus: "+hashOf(t, "right")+"}\n"+
		"http_server_config: {headers: {X-Frame-Options: deny}}")
	s.SetReady(errors.New("the target secret is down"), "")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	base := "http://" + s.Address().String()
	for _, c := range []struct {
		path, user, password string
		want                 int
	}{
		{"/metrics", "", "", 401}, {"/metrics", "prometheus", "right", 200},
		{"/metrics", "prometheus", "right", 200}, // from memory
		{"/metrics", "prometheus", "wrong", 401}, {"/metrics", "other", "right", 401},
		{"/metrics", "other", "fakepassword", 401}, {"/metrics", "prometheus", "", 401},
		{"/status", "", "", 401}, {"/status", "prometheus", "right", 200},
		{"/", "", "", 401}, {"/", "prometheus", "right", 200},
		{"/healthz", "", "", 200}, {"/healthz", "prometheus", "wrong", 200},
	} {
		request, err := http.NewRequest(http.MethodGet, base+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.user != "" {
			request.SetBasicAuth(c.user, c.password)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != c.want || response.Header.Get("X-Frame-Options") != "deny" ||
			(c.want == 401) != (response.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%+v: %s, %v", c, response.Status, response.Header)
		}
	}
	// Probes have no password, and do not learn the reason.
	if code, body := get(t, s, "/readyz"); code != 503 || body != "not ready\n" {
		t.Errorf("/readyz for everybody: %d %q", code, body)
	}
	if code, body := do(t, client, http.MethodGet, base+"/readyz", "", "Authorization",
		"Basic cHJvbWV0aGV1czpyaWdodA=="); code != 503 || !strings.Contains(body, "secret") {
		t.Errorf("/readyz with the password: %d %q", code, body)
	}
	// A password that is changed is another one at once, also for those who are remembered.
	if err := os.WriteFile(filepath.Join(directory, "web.yaml"), []byte(
		"basic_auth_users: {prometheus: "+hashOf(t, "another")+"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := web.Reload(); err != nil {
		t.Fatal(err)
	}
	if code, _ := do(t, client, http.MethodGet, base+"/metrics", "", "Authorization",
		"Basic cHJvbWV0aGV1czpyaWdodA=="); code != 401 {
		t.Errorf("the former password: %d", code)
	}
}

func TestConnectionsAreSecuredAsTheFileSays(t *testing.T) {
	const pair = "tls_server_config:\n  cert_file: certificate.pem\n  key_file: key.pem\n"
	s, web, directory := startWeb(t, pair+"  min_version: TLS13\n")
	url := "https://" + s.Address().String() + "/metrics"
	if code := codeOf(t, secureClient(t, directory, &tls.Config{}), url); code != 200 {
		t.Errorf("TLS 1.3: %d", code)
	}
	old := &tls.Config{MaxVersion: tls.VersionTLS12}
	if _, err := secureClient(t, directory, old).Get(url); err == nil ||
		!strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	// In plain text there is a hint, and nothing else.
	if code, body := get(t, s, "/metrics"); code != 400 || !strings.Contains(body, "HTTPS") {
		t.Errorf("plain text: %d %q", code, body)
	}
	rewrite := func(content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(directory, "web.yaml"), []byte(content),
			0o600); err != nil {
			t.Fatal(err)
		}
		if err := web.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	const clients = pair + "  client_ca_file: ca.pem\n" +
		"  client_auth_type: RequireAndVerifyClientCert\n"
	own, err := tls.LoadX509KeyPair(filepath.Join(directory, "certificate.pem"),
		filepath.Join(directory, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for names, isServed := range map[string]bool{"": true, "[prometheus]": true, "[other]": false} {
		content := clients
		if names != "" {
			content += "  client_allowed_sans: " + names + "\n"
		}
		rewrite(content)
		response, err := secureClient(t, directory,
			&tls.Config{Certificates: []tls.Certificate{own}}).Get(url)
		if (err == nil) != isServed {
			t.Errorf("with a certificate and names %q: %v", names, err)
		}
		if err == nil {
			_ = response.Body.Close()
		}
		if _, err := secureClient(t, directory, &tls.Config{}).Get(url); err == nil {
			t.Error("served without a certificate")
		}
	}
	rewrite("")
	if code, _ := get(t, s, "/metrics"); code != 200 {
		t.Errorf("without TLS again: %d", code)
	}
}

// Wrong passwords take much processor time to check, and few are checked at a time. Whoever has
// been served before is served meanwhile.
func TestWrongPasswordsKeepNobodyOut(t *testing.T) {
	s, _, _ := startWeb(t, "basic_auth_users: {prometheus: "+hashOf(t, "right")+"}")
	request := func(password string) int {
		code, _ := do(t, clientAt(testkit.Address(t)), http.MethodGet,
			"http://"+s.Address().String()+"/metrics", "", "Authorization", basic(password))
		return code
	}
	if code := request("right"); code != 200 {
		t.Fatalf("the right password: %d", code)
	}
	s.access.known.turn.Lock() // a check that lasts
	ended := make(chan int)
	const others = 2 * maxChecks
	for i := range others {
		go func() { ended <- request(fmt.Sprintf("wrong %d", i)) }()
	}
	for range others - maxChecks {
		if code := <-ended; code != http.StatusTooManyRequests {
			t.Errorf("a password beyond the limit: %d", code)
		}
	}
	if code := request("right"); code != 200 {
		t.Errorf("the right password, again: %d", code)
	}
	s.access.known.turn.Unlock()
	for range maxChecks {
		if code := <-ended; code != 401 {
			t.Errorf("a wrong password: %d", code)
		}
	}
}

func basic(password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth("prometheus", password)
	return r.Header.Get("Authorization")
}

// A page could make a name of its own resolve to this machine, and read what is meant for others.
func TestOnlyNamesOfThisMachineAreServed(t *testing.T) {
	config := testConfig("127.0.0.1:0")
	config.Hosts = []string{"Relay-1.example"}
	s := startWith(t, config)
	s.SetReady(errors.New("secret"), "")
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"127.0.0.1:1": 200, "[::1]:1": 200, "[fe80::1]": 200, "10.1.2.3": 200, "localhost": 200,
		"LOCALHOST:80": 200, own: 200, "relay-1.example:9470": 200, "relay-1.example.": 200,
		"evil.example": 403, "relay-1.example.evil.example": 403, "localhost.evil.example": 403,
		"127.0.0.1.evil.example": 403,
	} {
		base := "http://" + s.Address().String()
		client := clientAt(testkit.Address(t))
		for _, path := range []string{"/status", "/"} {
			if code, body := do(t, client, http.MethodGet, base+path, "", "Host",
				host); code != want {
				t.Errorf("%s%s: %d %.200s", host, path, code, body)
			}
		}
		for _, path := range []string{"/healthz", "/metrics"} {
			if code, _ := do(t, client, http.MethodGet, base+path, "", "Host", host); code != 200 {
				t.Errorf("%s%s: %d", host, path, code)
			}
		}
		if _, body := do(t, client, http.MethodGet, base+"/readyz", "", "Host",
			host); strings.Contains(body, "secret") != (want == 200) {
			t.Errorf("%s/readyz: %q", host, body)
		}
	}
}

// A browser sends requests of any page: of an image, without a choice of the user.
func TestPagesOfOtherSitesCostNothing(t *testing.T) {
	s := start(t)
	_, client, _, _ := startAdmin(t, "127.0.0.1:0")
	image := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors",
		"Sec-Fetch-Dest", "image"}
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
		"Sec-Fetch-Dest", "document"}
	own := []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1"}
	for _, c := range []struct {
		name, path       string
		header           []string
		atAdmin, atOther int
	}{
		{"an image", "/status", image, 403, 403},
		{"an image", "/debug/pprof/cmdline", image, 403, 404},
		{"an image", "/metrics", image, 403, 403},
		{"another page", "/status", []string{"Origin", "http://evil.example"}, 403, 403},
		{"a page without a name", "/status", []string{"Origin", "null"}, 403, 403},
		{"a page of the same site", "/status", []string{"Sec-Fetch-Site", "same-site"}, 403, 403},
		{"a link", "/status", link, 403, 200},
		{"a link", "/debug/pprof/cmdline", link, 403, 404},
		{"the page itself", "/status", own, 200, 200},
	} {
		if code, _ := do(t, client, http.MethodGet, "http://127.0.0.1"+c.path, "",
			c.header...); code != c.atAdmin {
			t.Errorf("admin, %s of %s: %d", c.path, c.name, code)
		}
		host := append([]string{"Host", "127.0.0.1"}, c.header...)
		if code, _ := do(t, clientAt(testkit.Address(t)), http.MethodGet,
			"http://"+s.Address().String()+c.path, "", host...); code != c.atOther {
			t.Errorf("metrics, %s of %s: %d", c.path, c.name, code)
		}
	}
}

// Every user of the machine can connect to a port.
func TestAPortForAdministrationNeedsAToken(t *testing.T) {
	config := AdminConfig{Address: "127.0.0.1:0", Status: testStatus, Log: zap.NewNop()}
	if _, err := ListenAdmin(config); !errors.Is(err, status.InvalidValue) ||
		!strings.Contains(err.Error(), "--admin-token-file") {
		t.Errorf("without a token: %v", err)
	}
	config.TokenFile = filepath.Join(t.TempDir(), "none")
	if _, err := ListenAdmin(config); err == nil || !strings.Contains(err.Error(),
		config.TokenFile) {
		t.Errorf("without the file: %v", err)
	}
	a, client, level, logs := startAdmin(t, "127.0.0.1:0")
	url := "http://127.0.0.1/loglevel"
	for header, want := range map[string]int{
		"Bearer " + testToken: 200, "Bearer " + testToken + "0": 401, "Bearer ": 401,
		"Basic " + testToken: 401, testToken: 401, "bearer": 401,
	} {
		if code, body := do(t, client, http.MethodGet, url, "", "Authorization",
			header); code != want {
			t.Errorf("%q: %d %q", header, code, body)
		}
	}
	if code, _ := do(t, client, http.MethodPut, url, `{"level":"debug"}`, "Authorization",
		"Bearer x"); code != 401 || level.Level() != zap.InfoLevel {
		t.Errorf("PUT without the token: %d, level %v", code, level)
	}
	if logs.FilterMessage("rejected a request for administration without the token").Len() == 0 {
		t.Error("attempts are not logged")
	}
	const another = "fedcba9876543210"
	if err := os.WriteFile(a.proof.tokenFile, []byte(another), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.ReloadToken(); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]int{testToken: 401, another: 200} {
		if code, _ := do(t, client, http.MethodGet, url, "", "Authorization",
			"Bearer "+token); code != want {
			t.Errorf("after the change, %q: %d", token, code)
		}
	}
	if err := os.Chmod(a.proof.tokenFile, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := a.ReloadToken(); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("a file that others can read: %v", err)
	}
	if code, _ := do(t, client, http.MethodGet, url, "", "Authorization",
		"Bearer "+another); code != 200 {
		t.Errorf("the former token after a failed reload: %d", code)
	}
}

// With TLS, a certificate of the authorities is as good as the token.
func TestACertificateIsAsGoodAsTheToken(t *testing.T) {
	directory, others := t.TempDir(), t.TempDir()
	mutualtlstest.NewAuthority(t).Write(directory, []string{"127.0.0.1"})
	mutualtlstest.NewAuthority(t).Write(others, []string{"127.0.0.1"})
	file := filepath.Join(directory, "web.yaml")
	load := func(content string) *webconfig.File {
		t.Helper()
		if err := os.WriteFile(file, []byte("tls_server_config:\n  cert_file: certificate.pem\n"+
			"  key_file: key.pem\n"+content), 0o600); err != nil {
			t.Fatal(err)
		}
		web, err := webconfig.Load(file, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		return web
	}
	const asks = "  client_ca_file: ca.pem\n  client_auth_type: "
	config := AdminConfig{Address: "127.0.0.1:0", Status: testStatus, Log: zap.NewNop(),
		Web: load("")}
	if _, err := ListenAdmin(config); err == nil ||
		!strings.Contains(err.Error(), "client_auth_type: RequireAndVerifyClientCert") {
		t.Errorf("a file that asks for no certificate: %v", err)
	}
	own := admin.Options{Certificate: directory + "/certificate.pem", Key: directory + "/key.pem",
		CA: directory + "/ca.pem"}
	foreign := own
	foreign.Certificate, foreign.Key = others+"/certificate.pem", others+"/key.pem"
	stranger := own
	stranger.CA = others + "/ca.pem"
	without := admin.Options{CA: own.CA}
	token := without
	token.TokenFile = writeToken(t, testToken)
	for name, c := range map[string]struct {
		asks      string
		tokenFile string
		served    []admin.Options
		rejected  []admin.Options
	}{
		"only with certificates": {asks + "RequireAndVerifyClientCert\n", "",
			[]admin.Options{own}, []admin.Options{foreign, stranger, without, token, {}}},
		"with either": {asks + "VerifyClientCertIfGiven\n", writeToken(t, testToken),
			[]admin.Options{own, token}, []admin.Options{foreign, stranger, without, {}}},
		"with any certificate and a token": {"  client_auth_type: RequireAnyClientCert\n",
			writeToken(t, testToken), nil, []admin.Options{own, foreign, without}},
	} {
		config.Web, config.TokenFile = load(c.asks), c.tokenFile
		a, err := ListenAdmin(config)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		call := func(o admin.Options) error {
			client, err := admin.NewWith(a.Address().String(), o)
			if err == nil {
				_, err = client.Status(t.Context())
			}
			return err
		}
		for _, o := range c.served {
			if err := call(o); err != nil {
				t.Errorf("%s, %+v: %v", name, o, err)
			}
		}
		for _, o := range c.rejected {
			if err := call(o); err == nil {
				t.Errorf("%s, %+v: served", name, o)
			}
		}
		if err := a.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A connection that is kept alive is served no more once the authority of its certificate is gone.
func TestAConnectionDoesNotOutlastItsAuthority(t *testing.T) {
	s, web, directory := startWeb(t, "tls_server_config:\n  cert_file: certificate.pem\n"+
		"  key_file: key.pem\n  client_ca_file: ca.pem\n"+
		"  client_auth_type: RequireAndVerifyClientCert\n")
	own, err := tls.LoadX509KeyPair(filepath.Join(directory, "certificate.pem"),
		filepath.Join(directory, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	client := secureClient(t, directory, &tls.Config{Certificates: []tls.Certificate{own}})
	client.Transport.(*http.Transport).DisableKeepAlives = false
	defer client.CloseIdleConnections()
	url := "https://" + s.Address().String() + "/metrics"
	if code := codeOf(t, client, url); code != 200 {
		t.Fatalf("with a certificate of the authority: %d", code)
	}
	other := mutualtlstest.NewAuthority(t).Write(t.TempDir(), nil)
	content, err := os.ReadFile(other.CA)
	if err == nil {
		err = os.WriteFile(filepath.Join(directory, "ca.pem"), content, 0o600)
	}
	if err == nil {
		err = web.Reload()
	}
	if err != nil {
		t.Fatal(err)
	}
	if code := codeOf(t, client, url); code != 403 {
		t.Errorf("on the same connection with another authority: %d", code)
	}
	if response, err := client.Get(url); err == nil {
		_ = response.Body.Close()
		t.Errorf("on a new connection: %s", response.Status)
	}
}
