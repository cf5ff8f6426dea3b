// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"net"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/nbd"
)

func TestRequestsAreCountedByConnectionAndByClient(t *testing.T) {
	names := make(chan string, 1)
	export := newMemoryExport()
	export.fail = func(op *blockio.Operation) blockio.Errno {
		if op.Command == blockio.Flush {
			return blockio.IOError
		}
		return blockio.Success
	}
	server, path := startServer(t, nbd.Config{CountedClients: 2,
		Admit:      func(net.Conn) (string, error) { return <-names, nil },
		NameClient: func(client string) string { return "user " + client[:1] },
	}, export)
	open := func(name string) *client {
		names <- name
		c := connect(t, path, structured)
		c.do(call{kind: blockio.Read, length: 512})
		c.do(call{kind: blockio.Flush})
		return c
	}
	close := func(c *client, left int) {
		_ = c.conn.Close()
		testkit.Eventually(t, "the connection has ended", func() bool {
			return len(server.Status()[0].Open) == left
		})
	}
	first := open("a1")
	close(open("b1"), 1)
	close(open("b2"), 1)
	open("c1") // takes the place of b, which has gone
	open("d1") // nobody has gone
	s := server.Status()[0]
	type row struct {
		client           string
		answered, failed uint64
		read             uint64
	}
	var connections, clients []row
	for _, c := range s.Open {
		all, failed := c.Answered()
		connections = append(connections, row{c.Client, all, failed, c.BytesRead})
	}
	for _, c := range s.Clients {
		all, failed := c.Answered()
		clients = append(clients, row{c.Client, all, failed, c.BytesRead})
	}
	expect(t, "connections", connections,
		row{"a1", 2, 1, 512}, row{"c1", 2, 1, 512}, row{"d1", 2, 1, 512})
	expect(t, "clients", clients,
		row{nbd.OtherClients, 2, 1, 512}, row{"user a", 2, 1, 512}, row{"user c", 2, 1, 512})
	if all, failed := s.Answered(); all != 10 || failed != 5 || s.BytesRead != 5*512 {
		t.Errorf("the export has answered %d requests, %d with errors, %d bytes", all, failed,
			s.BytesRead)
	}
	close(first, 2)
}

func expect[T comparable](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	same := len(got) == len(want)
	for i := range got {
		same = same && got[i] == want[i]
	}
	if !same {
		t.Errorf("%s are %v, want %v", what, got, want)
	}
}
