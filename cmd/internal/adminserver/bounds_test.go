// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// startWithHeaderTimeout is start for a server with a header timeout of its own.
func startWithHeaderTimeout(t *testing.T, timeout time.Duration) *Server {
	t.Helper()
	defer func(former time.Duration) { headerTimeout = former }(headerTimeout)
	headerTimeout = timeout
	return start(t)
}

// A relay whose target is this listener by mistake must not wait for the header timeout.
func TestAMessageOfAnotherProtocolIsRejectedAtOnce(t *testing.T) {
	s := startWithHeaderTimeout(t, time.Hour)
	for name, sent := range map[string]string{"control protocol": "\x00\x00\x00\x02\x0a\x00",
		"TLS": "\x16\x03\x01\x00\x02\x01\x00"} {
		c, err := net.Dial("tcp", s.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		reply := make([]byte, len("HTTP/1.1 400"))
		err = c.SetReadDeadline(time.Now().Add(time.Minute))
		if err == nil {
			_, err = io.ReadFull(c, reply)
		}
		if string(reply) != "HTTP/1.1 400" {
			t.Errorf("%s gets %q, %v", name, reply, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSilentClientIsCutOff(t *testing.T) {
	s := startWithHeaderTimeout(t, 50*time.Millisecond)
	for name, sent := range map[string]string{"nothing sent": "",
		"half a request sent": "GET /metrics HTTP/1.1\r\nHost: x\r\n"} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", s.Address().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("client was not cut off")
			}
		})
	}
}

// connectSilently opens connections that send nothing.
func connectSilently(t *testing.T, s *Server, count int) {
	t.Helper()
	for range count {
		c, err := net.Dial("tcp", s.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

func TestSilentClientsKeepNobodyOut(t *testing.T) {
	s := startWithHeaderTimeout(t, time.Hour) // they make room for others, not for the time
	connectSilently(t, s, 4*maxConnections)
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 3 {
		response, err := client.Get("http://" + s.Address().String() + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
}

func TestASilentClientIsNoReasonToFailAtTheEnd(t *testing.T) {
	s, err := Listen(testConfig("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	connectSilently(t, s, 1)
	get(t, s, "/healthz") // the silent one has been accepted before this
	http.DefaultClient.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func TestRequestsBeyondTheBoundsAreRefused(t *testing.T) {
	s := start(t)
	request, err := http.NewRequest(http.MethodGet, "http://"+s.Address().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Large", strings.Repeat("x", 2*maxHeaderBytes))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("large headers gave %s", response.Status)
	}
	if response, err = http.Post("http://"+s.Address().String()+"/readyz", "text/plain",
		strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST gave %s", response.Status)
	}
}
