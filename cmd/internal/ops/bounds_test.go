package ops

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func TestSilentClientIsCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the header timeout")
	}
	t.Parallel()
	s := start(t)
	for name, sent := range map[string]string{"nothing sent": "",
		"half a request sent": "GET /metrics HTTP/1.1\r\nHost: x\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
