package admin_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/zc-relay/zc-relay/pkg/admin"
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

func must(err error) {
	if err != nil {
		panic(err)
	}
}
