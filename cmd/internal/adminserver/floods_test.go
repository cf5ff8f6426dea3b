// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// withoutTimeouts makes nothing of what a test starts end because of the time.
func withoutTimeouts(t *testing.T) {
	t.Helper()
	header, request := headerTimeout, requestTimeout
	t.Cleanup(func() { headerTimeout, requestTimeout = header, request })
	headerTimeout, requestTimeout = time.Hour, time.Hour
}

// clientAt returns a client that connects from an address, anew for each request.
func clientAt(source netip.Addr) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: source.AsSlice()}}
	return &http.Client{Timeout: testkit.Patience,
		Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
}

func codeOf(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

// flood opens connections from a source that send a text, until the test ends or the returned
// function is called.
func flood(t *testing.T, address net.Addr, source netip.Addr, count int,
	text string) (all []net.Conn, end func()) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: source.AsSlice()}}
	for range count {
		c, err := d.DialContext(t.Context(), address.Network(), address.String())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		_, _ = io.WriteString(c, text) // fails if the server has closed the connection
	}
	end = func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
	t.Cleanup(end)
	return all, end
}

// connections returns how many connections are open, and how many of them have a request in
// progress.
func connections(s *httpServer) (open, busy int) {
	l := s.listener.(*limitedListener)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range append(append([]*limitedConn{}, l.places...), l.reserved...) {
		open++
		if !c.silent {
			busy++
		}
	}
	return open, busy
}

// largeStatus is more than the buffers of a connection hold.
func largeStatus() any { return strings.Repeat("x", 16<<20) }

func TestFloodsFromOneAddressKeepNobodyOut(t *testing.T) {
	withoutTimeouts(t)
	for name, f := range map[string]struct {
		text string
		busy int // connections with a request in progress that stay
	}{
		"nothing":           {"", 0},
		"half a header":     {"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", 0},
		"a body announced":  {"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n", 0},
		"a body in chunks":  {"GET /readyz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 0},
		"a body to nowhere": {"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n", 0},
		"a continuation": {"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n" +
			"Content-Length: 60000\r\n\r\n", 0},
		"kept alive":        {"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 0},
		"no reply is read":  {"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 1},
		"many replies wait": {strings.Repeat("GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 9), 1},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig("127.0.0.1:0")
			config.Status = largeStatus
			s := startWith(t, config)
			s.SetReady(nil, "")
			attacker, honest := testkit.Address(t), testkit.Address(t)
			_, end := flood(t, s.Address(), attacker, 2*maxConnections, f.text)
			testkit.Eventually(t, "the server has them all", func() bool {
				_, busy := connections(s.httpServer)
				return busy >= f.busy
			})
			url := "http://" + s.Address().String()
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				if code := codeOf(t, clientAt(honest), url+path); code != http.StatusOK {
					t.Errorf("%s for another address: %d", path, code)
				}
			}
			for _, path := range []string{"/healthz", "/readyz"} {
				if code := codeOf(t, clientAt(attacker), url+path); code != http.StatusOK {
					t.Errorf("%s for the same address: %d", path, code)
				}
			}
			if open, _ := connections(s.httpServer); open > maxPerSource+maxReserved+1 {
				t.Errorf("%d connections are open", open)
			}
			end()
			testkit.Eventually(t, "all are released", func() bool {
				open, _ := connections(s.httpServer)
				return open == 0
			})
		})
	}
}

// A request without the body that it announces has its reply, and then the connection ends.
func TestAReplyDoesNotWaitForABodyThatNobodyReads(t *testing.T) {
	withoutTimeouts(t)
	s := start(t)
	a, _, _, _ := startAdmin(t, "127.0.0.1:0")
	token := "Authorization: Bearer " + testToken + "\r\n"
	for _, c := range []struct {
		address       net.Addr
		request, want string
	}{
		{s.Address(), "GET /healthz HTTP/1.1\r\n", "200"},
		{s.Address(), "GET /metrics HTTP/1.1\r\n", "200"},
		{s.Address(), "POST /healthz HTTP/1.1\r\n", "405"},
		{a.Address(), "GET /status HTTP/1.1\r\n" + token, "200"},
		{a.Address(), "PUT /loglevel HTTP/1.1\r\n", "401"},
		{a.Address(), "GET /status HTTP/1.1\r\nHost: evil.example\r\n", "403"},
	} {
		if !strings.Contains(c.request, "Host:") {
			c.request += "Host: 127.0.0.1\r\n"
		}
		conns, _ := flood(t, c.address, testkit.Address(t), 1,
			c.request+"Content-Length: 60000\r\n\r\n")
		_ = conns[0].SetReadDeadline(time.Now().Add(testkit.Patience))
		reply, err := io.ReadAll(conns[0])
		if err != nil || !strings.HasPrefix(string(reply), "HTTP/1.1 "+c.want) {
			t.Errorf("%q: %.100q, %v", c.request, reply, err)
		}
	}
}

func TestSourcesShareTheConnections(t *testing.T) {
	inner := mustListen(t)
	l := newLimitedListener(inner, nil)
	accept := func(source string, isBusy bool) *limitedConn {
		c := &limitedConn{Conn: &net.TCPConn{}, listener: l, silent: !isBusy,
			source: netip.MustParsePrefix(source)}
		if replaced := l.admit(c); replaced != nil {
			replaced.Conn = nil
		}
		return c
	}
	for i := range maxConnections / maxPerSource {
		for range maxPerSource + 1 {
			accept(fmt.Sprintf("10.0.0.%d/32", i), true)
		}
	}
	if len(l.places) != maxConnections || len(l.reserved) != maxConnections/maxPerSource {
		t.Fatalf("%d places, %d reserved", len(l.places), len(l.reserved))
	}
	// All places have a request: a newcomer is for health only, and stays for as long as those of a
	// source with more.
	first := accept("10.0.1.1/32", true)
	if !first.reserved {
		t.Error("a connection has a place beyond the limit")
	}
	for range 3 * maxReserved {
		accept("10.0.1.2/32", true)
	}
	if len(l.reserved) != maxReserved || first.Conn == nil {
		t.Errorf("%d reserved, the first %v", len(l.reserved), first.Conn)
	}
	// A silent one of the source with most gives way.
	l.places[5].silent = true
	victim := l.places[5]
	if c := accept("10.0.1.3/32", true); c.reserved || victim.Conn != nil {
		t.Error("a silent connection keeps its place")
	}
	if err := inner.Close(); err != nil {
		t.Error(err)
	}
}

func TestAnAddressIsASource(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32",
		"2001:db8:1:2:3::4": "2001:db8:1:2::/64",
	} {
		got := sourceOfAddress(&net.TCPAddr{IP: net.ParseIP(address)})
		if got.String() != want {
			t.Errorf("%s is of %v", address, got)
		}
	}
	if got := sourceOfAddress(&net.UnixAddr{}); got.IsValid() {
		t.Errorf("a Unix socket is of %v", got)
	}
}

// A source has half of the places, so that another one finds some.
func TestASourceHasHalfOfThePlaces(t *testing.T) {
	p := places{limit: 4}
	one, other := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32")
	first, second := p.take(one), p.take(one)
	if first == nil || second == nil || p.take(one) != nil {
		t.Error("a source does not have two of four places")
	}
	third, fourth := p.take(other), p.take(other)
	if third == nil || fourth == nil || p.take(netip.Prefix{}) != nil {
		t.Error("another source does not have the other two")
	}
	second()
	if p.take(one) == nil {
		t.Error("a place that was given back is lost")
	}
}

// A slow reader has its connection, but no place of those that limit expensive requests.
func TestASlowReaderHoldsNoPlaceOfRequests(t *testing.T) {
	withoutTimeouts(t)
	handler := limitRequests(1, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 16<<20))
	}))
	server := newHTTPServer(serverConfig{name: "test", listener: mustListen(t), handler: handler,
		log: zap.NewNop()})
	flood(t, server.Address(), testkit.Address(t), 1, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	testkit.Eventually(t, "the request is in progress", func() bool {
		_, busy := connections(server)
		return busy == 1
	})
	testkit.Eventually(t, "a place is free", func() bool {
		return codeOf(t, clientAt(testkit.Address(t)),
			"http://"+server.Address().String()) == http.StatusOK
	})
	if err := server.http.Close(); err != nil {
		t.Error(err)
	}
	server.serving.Wait()
}

// Entries with equal messages are repeats, which are sampled.
func TestEntriesAboutManyPeersAreRepeats(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	server := newHTTPServer(serverConfig{name: "test", listener: mustListen(t),
		handler: http.NotFoundHandler(), log: zap.New(core)})
	for port := range 2 {
		server.http.ErrorLog.Printf("http: TLS handshake error from 192.0.2.1:%d: EOF", port)
	}
	entries := logs.All()
	if len(entries) != 2 || entries[0].Message != entries[1].Message ||
		entries[1].ContextMap()["error"] != "http: TLS handshake error from 192.0.2.1:1: EOF" {
		t.Errorf("the log has %v", entries)
	}
	if err := server.http.Close(); err != nil {
		t.Error(err)
	}
	server.serving.Wait()
}
