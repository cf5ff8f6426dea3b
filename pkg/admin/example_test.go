// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The daemon of this example only knows its sessions. A real one listens where --admin-listen says.
func Example() {
	directory, err := os.MkdirTemp("", "admin")
	must(err)
	defer os.RemoveAll(directory)
	socket := filepath.Join(directory, "admin.sock")
	listener, err := net.Listen("unix", socket)
	must(err)
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"schema":"zc-relay.sessions/1","sessions":[{"id":7,"peer":"host"}]}`)
		}))
	}()

	client, err := admin.New("unix:" + socket)
	must(err)
	sessions, err := client.Sessions(context.Background())
	must(err)
	for _, s := range sessions {
		fmt.Println(s.ID, s.Peer)
	}
	must(listener.Close())
	// Output: 7 host
}

// The relay of this example adds every channel that it is asked for.
func ExampleClient_AddChannel() {
	directory, err := os.MkdirTemp("", "admin")
	must(err)
	defer os.RemoveAll(directory)
	socket := filepath.Join(directory, "admin.sock")
	listener, err := net.Listen("unix", socket)
	must(err)
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"channel":"03:00.0/b1:00.1/vm7","state":"listening"}`)
		}))
	}()

	client, err := admin.New("unix:" + socket)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	channel, err := client.AddChannel(ctx, admin.NewChannel{
		Name: "vm7", Representor: "b1:00.1", Target: "10.0.0.5:7470", Volume: "disk7",
		QoS: admin.ChannelQoS{Channel: admin.RateLimits{IOPS: "20000"}},
	})
	switch {
	case errors.Is(err, status.AlreadyExist): // a former call may have added it
	case err != nil:
		panic(err)
	case channel.Reason != "":
		fmt.Println("clients cannot connect yet:", channel.Reason)
	}
	fmt.Println(channel.FullName, channel.State)
	must(listener.Close())
	// Output: 03:00.0/b1:00.1/vm7 listening
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
