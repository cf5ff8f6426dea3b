// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// A listener may accept a connection and never reply, or stop in the middle of a reply.
func TestACallEndsThoughTheListenerIsSilent(t *testing.T) {
	for name, reply := range map[string]string{"nothing": "",
		"a part": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					// What comes before the request is no reply to it.
					_, _ = http.ReadRequest(bufio.NewReader(conn))
					_, _ = io.WriteString(conn, reply)
					_, _ = io.Copy(io.Discard, conn) // until the client gives up
					_ = conn.Close()
				}()
			}
		}()
		client, err := New(listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if client.timeout != DefaultTimeout {
			t.Errorf("the timeout is %v", client.timeout)
		}
		client.timeout = 50 * time.Millisecond
		_, err = client.Sessions(context.Background())
		if !errors.Is(err, status.TimeOut) {
			t.Errorf("%s: a call without a deadline: %v", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		client.timeout = time.Hour
		if _, err := client.AddChannel(ctx, NewChannel{}); !errors.Is(err, status.TimeOut) {
			t.Errorf("%s: a change with a deadline: %v", name, err)
		}
	}
	ctx, cancel := bounded(context.Background(), longestWait)
	defer cancel()
	if deadline, limited := ctx.Deadline(); !limited || time.Until(deadline) > longestWait {
		t.Errorf("a change without a deadline ends at %v", deadline)
	}
}
