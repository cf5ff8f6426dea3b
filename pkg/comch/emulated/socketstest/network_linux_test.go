// SPDX-License-Identifier: Apache-2.0

package socketstest

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts/contextstest"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestProviderConformsOnSocketsInMemory(t *testing.T) {
	process := NewNetwork(Options{}).NewProcess(self)
	config := comchtest.Config{
		Provider:              emulated.New(emulated.Options{Sockets: process}),
		OtherDevice:           "03:00.1",
		OtherHostDevice:       "b1:00.1",
		ExportNeedsDescriptor: true,
	}
	if !testkit.IsComplete() {
		// What is above the connections is the same as over the kernel's sockets.
		config.Groups = []string{"Provider", "Server", "Connect", "Messages", "Consumers", "Ending",
			"Memory", "ContextConnections", "ContextEnding"}
	}
	comchtest.Run(t, config)
	contextstest.Run(t, config)
}

// processes returns two connected processes.
func processes(t *testing.T, network *Network) (server, client *Process,
	accepted, dialed emulated.Socket) {
	t.Helper()
	server, client = network.NewProcess(comch.Peer{PID: 1}), network.NewProcess(comch.Peer{PID: 2})
	listener := listen(t, server, storage)
	dialed = connect(t, client)
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return server, client, accepted, dialed
}

func TestPeersSeeTheIdentitiesOfProcesses(t *testing.T) {
	_, _, accepted, dialed := processes(t, NewNetwork(Options{}))
	for socket, want := range map[emulated.Socket]int{accepted: 2, dialed: 1} {
		if peer, err := socket.Peer(); err != nil || peer.PID != want {
			t.Errorf("got peer %+v and error %v, want process %d", peer, err, want)
		}
	}
}

func TestPacketsArriveWhenTheyAreDelivered(t *testing.T) {
	var flying []*Delivery
	network := NewNetwork(Options{InFlight: func(d *Delivery) { flying = append(flying, d) }})
	_, _, accepted, dialed := processes(t, network)
	write(t, dialed, "one")
	write(t, dialed, "three")
	_ = dialed.Close()
	if len(flying) != 3 || flying[0].Length != 3 || flying[1].Length != 5 || !flying[2].End ||
		flying[0].From.PID != 2 || flying[0].To.PID != 1 {
		t.Fatalf("got %d deliveries, the first %+v", len(flying), flying[0])
	}
	wantNothing := func() {
		t.Helper()
		if err := accepted.SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		if got, _, err := read(t, accepted); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("got packet %q and error %v before its delivery", got, err)
		}
		if err := accepted.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	wantNothing()
	flying[1].Deliver()
	wantNothing() // the first packet is still in flight
	flying[0].Deliver()
	flying[0].Deliver()
	wantPacket(t, accepted, "one")
	wantPacket(t, accepted, "three")
	write(t, accepted, "the end is still in flight")
	flying[2].Deliver()
	wantReadError(t, accepted, io.EOF)
}

func TestDeliveriesToAClosedSocketVanish(t *testing.T) {
	var flying []*Delivery
	network := NewNetwork(Options{InFlight: func(d *Delivery) { flying = append(flying, d) }})
	_, _, accepted, dialed := processes(t, network)
	before := countDescriptors(t)
	write(t, dialed, "late", newFile(t))
	_ = accepted.Close()
	for _, d := range flying {
		d.Deliver()
	}
	wantReadError(t, dialed, syscall.ECONNRESET)
	if after := countDescriptors(t); after != before+1 {
		t.Errorf("%d descriptors, want the file and the %d before", after, before)
	}
}

func TestKilledProcessesEndTheirConnections(t *testing.T) {
	cases := map[string]struct {
		unread bool // the victim has not read everything
		first  error
	}{
		"everything read": {false, nil},
		"unread packets":  {true, syscall.ECONNRESET},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			server, client, accepted, dialed := processes(t, NewNetwork(Options{}))
			write(t, dialed, "last")
			if test.unread {
				write(t, accepted, "unread")
			}
			client.Kill()
			write(t, dialed, "vanishes")
			wantReadError(t, dialed, net.ErrClosed)
			if test.first != nil {
				wantReadError(t, accepted, test.first)
			}
			wantPacket(t, accepted, "last")
			wantReadError(t, accepted, io.EOF)
			if _, err := client.Connect(t.Context(), storage.Representor,
				storage.Name); !errors.Is(err, status.NotConnected) {
				t.Errorf("a killed process connects: %v", err)
			}
			connect(t, server.network.NewProcess(comch.Peer{PID: 3}))
		})
	}
}

func TestKilledServersReleaseTheirNames(t *testing.T) {
	server, client, _, dialed := processes(t, NewNetwork(Options{}))
	waiting := connect(t, client)
	server.Kill()
	wantReadError(t, dialed, io.EOF)
	wantReadError(t, waiting, syscall.ECONNRESET)
	_, err := client.Connect(t.Context(), storage.Representor, storage.Name)
	if !errors.Is(err, status.NotFound) {
		t.Errorf("connect to a killed server: %v", err)
	}
	if _, err := server.Listen(t.Context(), storage, false); !errors.Is(err, status.NotConnected) {
		t.Errorf("a killed process listens: %v", err)
	}
	listen(t, client, storage)
}

func TestTheBacklogOfAListenerIsBounded(t *testing.T) {
	process := NewNetwork(Options{Backlog: 1}).NewProcess(self)
	listen(t, process, storage)
	connect(t, process)
	_, err := process.Connect(t.Context(), storage.Representor, storage.Name)
	if !errors.Is(err, status.Full) {
		t.Errorf("got %v", err)
	}
}
