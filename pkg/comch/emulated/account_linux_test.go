// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestConnectionsTakeNoMoreThanTheyLeave(t *testing.T) {
	parent := &account{name: "server", limit: holdings{descriptors: 100, ringBytes: 1000}}
	newChild := func() *account { return &account{name: "connection", parent: parent, limit: unlimited} }
	// take charges one by one until it fails, and returns what it got.
	take := func(a *account, one holdings, want status.Code) (taken int) {
		t.Helper()
		for {
			if err := a.charge(one); err != nil {
				if !errors.Is(err, want) || !strings.Contains(err.Error(), "server") {
					t.Errorf("got %v, want %v that names the server", err, want)
				}
				a.release(one)
				return taken
			}
			taken++
		}
	}
	for kind, unit := range map[status.Code]holdings{
		status.Full: {descriptors: 1}, status.NoMemory: {ringBytes: 10},
	} {
		var greedy []*account
		var got []int
		for range 4 {
			greedy = append(greedy, newChild())
			got = append(got, take(greedy[len(greedy)-1], unit, kind))
		}
		if want := []int{50, 25, 12, 6}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("greedy connections got %v %v, want %v", got, kind, want)
		}
		greedy[0].release(holdings{descriptors: 50 * unit.descriptors,
			ringBytes: 50 * unit.ringBytes})
		if got := take(newChild(), unit, kind); got < 25 {
			t.Errorf("a newcomer got %d %v after half was released", got, kind)
		}
	}
}

// TestRefusedReservationsTakeNothing asks for too much while an honest connection asks for little.
func TestRefusedReservationsTakeNothing(t *testing.T) {
	parent := &account{name: "server", limit: holdings{descriptors: 100, ringBytes: 1000}}
	greedy := &account{name: "connection", parent: parent, limit: unlimited}
	honest := &account{name: "connection", parent: parent, limit: unlimited}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := greedy.reserve(holdings{ringBytes: 1000}); !errors.Is(err, status.NoMemory) {
				t.Errorf("reserve everything: %v", err)
			}
		}
	}()
	for range 100_000 {
		if err := honest.reserve(holdings{descriptors: 1, ringBytes: 10}); err != nil {
			t.Errorf("reserve little: %v", err)
			break
		}
		honest.release(holdings{descriptors: 1, ringBytes: 10})
	}
	close(stop)
	<-stopped
	if held := parent.current(); held != (holdings{}) {
		t.Errorf("the server holds %+v in the end", held)
	}
}

func TestLimitsOfServersBoundTheirConnections(t *testing.T) {
	const ring = 1 << 20
	config := comch.ConsumerConfig{Receives: 1, MemorySize: ring - 4096}
	cases := map[string]struct {
		limits    Limits
		admission comch.Admission
		code      status.Code
		atMost    int // consumers
	}{
		"ring memory of the provider's servers": {
			limits: Limits{MaxServerRingBytes: 8 * ring}, code: status.NoMemory, atMost: 7},
		"ring memory of the server's admission": {
			admission: comch.Admission{MaxRingBytes: 8 * ring}, code: status.NoMemory, atMost: 7},
		"ring memory of the provider": {
			limits: Limits{MaxAllRingBytes: 8 * ring}, code: status.NoMemory, atMost: 7},
		"descriptors of the server": {
			limits: Limits{MaxServerDescriptors: 40}, code: status.Full, atMost: 19},
		"descriptors of the provider": {
			limits: Limits{MaxDescriptors: 40}, code: status.Full, atMost: 19},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			listening := New(Options{Directory: directory, Limits: test.limits})
			listened, err := listening.Listen(t.Context(),
				comch.ServerConfig{Name: "storage", Admission: test.admission})
			if err != nil {
				t.Fatal(err)
			}
			opened := 0
			var clients []comch.Connection
			for range 4 {
				client := connectTo(t, directory)
				clients = append(clients, client)
				for {
					consumer, err := client.NewConsumer(t.Context(), config)
					if err != nil {
						if !errors.Is(err, test.code) {
							t.Errorf("got %v, want %v", err, test.code)
						}
						break
					}
					t.Cleanup(func() { _ = consumer.Close() })
					opened++
				}
			}
			if opened < 4 || opened > test.atMost {
				t.Errorf("four clients opened %d consumers, want 4 to %d", opened, test.atMost)
			}
			for _, client := range clients {
				client.Abort()
			}
			if err := listened.Close(); err != nil {
				t.Error(err)
			}
			user, lingering := uint32(unix.Getuid()), &listened.(*server).pool.lingering
			awaitNothingHeld(t, &listening.(*provider).account,
				func() { lingering.freeAll(user, testkit.Patience, nil) })
		})
	}
}

func connectTo(t *testing.T, directory string) comch.Connection {
	t.Helper()
	client, err := New(Options{Directory: directory}).Connect(t.Context(),
		comch.ClientConfig{Name: "storage"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Abort)
	return client
}

// sendStuck sends frames with descriptors that wait to be closed until release is called.
func sendStuck(t *testing.T, peer *frameSocket) (release func()) {
	t.Helper()
	descriptor, release := blockingDescriptor(t)
	open := frame{kind: frameOpenConsumer, fields: [maxFields]uint32{1, 1, 64, 0}}
	if err := peer.write(&open, descriptors{list: []int{descriptor}}); err != nil {
		t.Fatal(err)
	}
	closeDescriptor(descriptor)
	return release
}

func TestStuckDescriptorsEndTheirConnection(t *testing.T) {
	c, peer := newHalfConnection(t, serverRole)
	c.cleanupTimeout = 50 * time.Millisecond
	release := sendStuck(t, peer)
	for i := range uint32(2 * maxUncleaned) {
		export := frame{kind: frameExport, fields: [maxFields]uint32{3 + 2*i, 1, 4096, 0}}
		if err := peer.write(&export, descriptors{list: []int{0}}); err != nil {
			t.Fatal(err)
		}
	}
	c.start()
	if err := awaitEnd(t, c); !errors.Is(err, status.TimeOut) {
		t.Errorf("the connection ended with %v", err)
	}
	// The socket, and one more frame than the reader waits for.
	if held := c.account.current().descriptors; held < maxUncleaned || held > maxUncleaned+2 {
		t.Errorf("the connection holds %d descriptors, want about %d", held, maxUncleaned)
	}
	release()
	peer.close()
	if !c.cleanup.waitFor(0, testkit.Patience, nil) {
		t.Error("the connection is not cleaned up after the descriptor is closed")
	}
	if held := c.account.current(); held != (holdings{}) {
		t.Errorf("the connection still holds %+v", held)
	}
}

func TestEndedConnectionsReceiveNoDescriptors(t *testing.T) {
	c, peer := newHalfConnection(t, serverRole)
	goodbye := textFrame(frameGoodbye, nil)
	c.end(byThisSide, status.Shutdown, &goodbye) // nobody writes it, so the socket stays open
	const frames = 2 * maxUncleaned
	for i := range uint32(frames) {
		export := frame{kind: frameExport, fields: [maxFields]uint32{1 + 2*i, 1, 4096, 0}}
		if err := peer.write(&export, descriptors{list: []int{0}}); err != nil {
			t.Fatal(err)
		}
	}
	working := make(chan struct{}) // keeps the queue from closing anything
	c.cleanup.add(func() { <-working })
	peer.close()
	c.readFrames()
	if held := c.account.current().descriptors; held > 1 {
		t.Errorf("the connection holds %d descriptors, want its socket at most", held)
	}
	close(working)
	c.socket.close()
	if !c.cleanup.waitFor(0, testkit.Patience, nil) {
		t.Error("the connection is not cleaned up")
	}
}

// TestStuckClientsCountAfterTheirEnd ends connections while a descriptor cannot be closed.
func TestStuckClientsCountAfterTheirEnd(t *testing.T) {
	server := listenIn(t, shortDirectory(t),
		comch.ServerConfig{Name: "storage", Admission: comch.Admission{MaxClients: 2}}).(*server)
	connect := func() (*frameSocket, error) {
		s := dialRaw(t, server)
		_, err := greetServer(context.Background(), s, greeting{defaultLimits.MaxMessageSize, 1})
		return s, err
	}
	var releases []func()
	for range 2 {
		s, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := server.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The server must not close the descriptor before the test does.
		server.pool.allocating <- struct{}{}
		hold := frame{kind: frameOpenConsumer, fields: [maxFields]uint32{3, 1, 64, 0}}
		button := newSharedButton(t)
		if err := s.write(&hold, descriptors{list: []int{button}}); err != nil {
			t.Fatal(err)
		}
		releases = append(releases, sendStuck(t, s))
		<-server.pool.allocating
		s.close()
		awaitEnd(t, accepted)
	}
	if _, err := connect(); !errors.Is(err, status.Full) {
		t.Errorf("a client beside two that cannot be cleaned up: %v", err)
	}
	for _, release := range releases {
		release()
	}
	if _, err := connect(); err != nil {
		t.Errorf("a client after the cleanup: %v", err)
	}
}

// newSharedButton returns one end of a pair of datagram sockets.
func newSharedButton(t *testing.T) int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDescriptor(pair[0]); closeDescriptor(pair[1]) })
	return pair[0]
}

func TestProducersOfAllConsumersAreBounded(t *testing.T) {
	c, peer := newServedConnection(t, serverRole)
	c.limits.MaxProducers = 1
	id := uint32(1)
	open := func(consumer comch.ConsumerID) uint32 {
		t.Helper()
		f := frame{kind: frameOpenProducer, fields: [maxFields]uint32{id, uint32(consumer)}}
		id += 2
		if err := peer.write(&f, descriptors{list: []int{newSharedButton(t)}}); err != nil {
			t.Fatal(err)
		}
		reply, _, err := peer.read()
		if err != nil {
			t.Fatal(err)
		}
		return reply.fields[1]
	}
	var consumers []*consumer
	for range 2 {
		created := make(chan *consumer, 1)
		go func() {
			opened, err := c.NewConsumer(context.Background(),
				comch.ConsumerConfig{Receives: 1, MemorySize: 1})
			if err != nil {
				t.Error(err)
			}
			created <- opened.(*consumer)
		}()
		announced, received, err := peer.read()
		if err != nil {
			t.Fatal(err)
		}
		received.closeAll()
		reply := textFrame(frameReply, nil, announced.fields[0])
		if err := peer.write(&reply, descriptors{}); err != nil {
			t.Fatal(err)
		}
		consumers = append(consumers, <-created)
	}
	if code := open(consumers[0].id); code != uint32(status.Success) {
		t.Errorf("first producer: code %d", code)
	}
	if code := open(consumers[1].id); code != uint32(status.Full) {
		t.Errorf("second producer, of another consumer: code %d", code)
	}
	_ = consumers[0].Close()
	if _, _, err := peer.read(); err != nil { // the consumer is closed
		t.Fatal(err)
	}
	if code := open(consumers[1].id); code != uint32(status.Success) {
		t.Errorf("a producer after the first consumer was closed: code %d", code)
	}
	_ = consumers[1].Close()
}

// TestStuckHandshakesDoNotBlockTheServer sends a descriptor that cannot be closed instead of a
// hello.
func TestStuckHandshakesDoNotBlockTheServer(t *testing.T) {
	directory := shortDirectory(t)
	server := listenIn(t, directory, comch.ServerConfig{Name: "storage"}).(*server)
	server.mu.Lock() // the handshake must not start before the test has closed the descriptor
	peer := dialRaw(t, server)
	release := sendStuck(t, peer)
	server.mu.Unlock()
	for range 2 * maxHandshakes { // the oldest handshakes are ended
		dialRaw(t, server)
	}
	connectTo(t, directory)
	wantNoWait(t, release, func() { _ = server.Close() })
	release()
	server.running.Wait()
}
