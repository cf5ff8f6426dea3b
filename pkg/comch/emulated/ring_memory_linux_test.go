// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// allocatedBytes returns how much memory a file occupies.
func allocatedBytes(t *testing.T, descriptor int) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(descriptor, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks * 512
}

func TestClientCannotKeepRingMemoryOfTheServer(t *testing.T) {
	config := comch.ConsumerConfig{Receives: 64, MemorySize: 1 << 20}
	for name, sides := range map[string]func(client, server *connection) (consumers,
		producers *connection){
		"client's consumer": func(client, server *connection) (*connection,
			*connection) {
			return client, server
		},
		"server's consumer": func(client, server *connection) (*connection,
			*connection) {
			return server, client
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := newTestPair(t)
			to, from := sides(client, server)
			created, err := to.NewConsumer(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			producer, err := from.NewProducer(t.Context(), created.ID())
			if err != nil {
				t.Fatal(err)
			}
			kept := duplicateOf(t, created.(*consumer).region.Descriptor())
			defer closeDescriptor(kept)
			if allocatedBytes(t, kept) < 1<<20 {
				t.Fatal("the ring is not allocated")
			}
			if err := created.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := from.NextConsumerEvent(t.Context()); err != nil { // created
				t.Fatal(err)
			}
			if _, err := from.NextConsumerEvent(t.Context()); err != nil { // destroyed
				t.Fatal(err)
			}
			if err := producer.Close(); err != nil {
				t.Fatal(err)
			}
			// The consumer tells of its end before it releases the ring.
			for start := time.Now(); allocatedBytes(t, kept) != 0; time.Sleep(time.Millisecond) {
				if time.Since(start) > testkit.Patience {
					t.Fatalf("%d bytes are still allocated", allocatedBytes(t, kept))
				}
			}
		})
	}
}

func TestSendToARevokedRingIsNotAViolation(t *testing.T) {
	ring := newRingPair(t, 4, 256)
	ring.postAll(t, 64)
	if err := ring.send.send(1, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	ring.receive.shared.header.posted.Store(0)
	clear(ring.receive.shared.posted)
	if err := ring.send.send(1, []byte("x"), nil); err != error(status.NotConnected) {
		t.Errorf("with receives left: %v", err)
	}
	ring.send.seenPosted.Store(1)
	if err := ring.send.send(1, []byte("x"), nil); err != error(status.NotConnected) {
		t.Errorf("without receives left: %v", err)
	}
}

// TestRingMemoryOutlivesItsConnectionUntilItIsNeeded ends the connection on the server first, so
// that the client may still be reading.
func TestRingMemoryOutlivesItsConnectionUntilItIsNeeded(t *testing.T) {
	for name, needed := range map[string]bool{"not needed": false, "needed": true} {
		t.Run(name, func(t *testing.T) {
			client, server := newTestPair(t)
			created, err := client.NewConsumer(t.Context(),
				comch.ConsumerConfig{Receives: 1, MemorySize: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = created.Close() }()
			start := time.Now()
			server.Abort()
			server.awaitGoroutines(testkit.Patience)
			if needed {
				server.pool.lingering.freeAll(server.peer.UID, testkit.Patience, nil)
			}
			if freed := allocatedBytes(t,
				created.(*consumer).region.Descriptor()) == 0; freed != needed &&
				time.Since(start) < readGracePeriod {
				t.Errorf("freed: %v, want %v", freed, needed)
			}
		})
	}
}
