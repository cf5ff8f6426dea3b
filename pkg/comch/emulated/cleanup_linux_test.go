// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// blockingDescriptor returns a descriptor whose last close blocks until release is called.
func blockingDescriptor(t *testing.T) (descriptor int, release func()) {
	t.Helper()
	descriptor, release, err := testkit.StuckDescriptor()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return descriptor, release
}

// queueBlockingDescriptor queues the only reference to a blocking descriptor at the other end of
// socket.
func queueBlockingDescriptor(t *testing.T, socket int) (release func()) {
	t.Helper()
	descriptor, release := blockingDescriptor(t)
	if err := unix.Sendmsg(socket, linux.WakeSignal, unix.UnixRights(descriptor), nil,
		unix.MSG_DONTWAIT); err != nil {
		t.Fatal(err)
	}
	closeDescriptor(descriptor)
	return release
}

// wantNoWait checks that call returns although closing the blocking descriptor blocks.
func wantNoWait(t *testing.T, release, call func()) {
	t.Helper()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		call()
	}()
	select {
	case <-returned:
	case <-time.After(testkit.Patience):
		t.Error("the call waits for a descriptor from the peer")
		release()
		<-returned
	}
}

func TestDoorbellCallsDoNotWaitForPeerDescriptors(t *testing.T) {
	cases := map[string]func(*testing.T, *doorbell){
		"clear": func(t *testing.T, bell *doorbell) {
			if err := bell.clear(); !isViolation(err) {
				t.Errorf("clear returned %v", err)
			}
			if err := bell.clear(); err != nil || isReadable(t, bell.descriptor) {
				t.Errorf("the doorbell stays readable, error %v", err)
			}
		},
		"clear after shutdown": func(t *testing.T, bell *doorbell) {
			bell.shutDown()
			if err := bell.clear(); !isViolation(err) || isReadable(t, bell.descriptor) {
				t.Errorf("the doorbell stays readable, error %v", err)
			}
		},
		"close": func(t *testing.T, bell *doorbell) {
			if err := bell.close(); err != nil {
				t.Error(err)
			}
		},
	}
	for name, use := range cases {
		t.Run(name, func(t *testing.T) {
			bell, button := newTestDoorbell(t)
			linux.Wake(button)
			release := queueBlockingDescriptor(t, button)
			closeDescriptor(button)
			wantNoWait(t, release, func() { use(t, bell) })
			release()
			bell.cleanup.waitFor(0, testkit.Patience, nil)
		})
	}
}

func TestClosingDoesNotWaitForPeerDoorbells(t *testing.T) {
	for name, closeIt := range map[string]func(*connection, *consumer) error{
		"consumer closes": func(_ *connection,
			consumer *consumer) error {
			return consumer.Close()
		},
		"producer closes": func(c *connection, consumer *consumer) error {
			c.handleCloseProducer(&frame{fields: [maxFields]uint32{1, uint32(consumer.id)}})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := newTestPair(t)
			created, err := server.NewConsumer(t.Context(),
				comch.ConsumerConfig{Receives: 1, MemorySize: 1})
			if err != nil {
				t.Fatal(err)
			}
			hostile, button := newTestDoorbell(t)
			release := queueBlockingDescriptor(t, hostile.descriptor)
			if err := created.(*consumer).producers.add(1, button); err != nil {
				t.Fatal(err)
			}
			if err := hostile.close(); err != nil {
				t.Fatal(err)
			}
			wantNoWait(t, release, func() {
				if err := closeIt(server, created.(*consumer)); err != nil {
					t.Error(err)
				}
				created.Flush()
			})
			release()
			server.cleanup.waitFor(0, testkit.Patience, nil)
			_ = created.Close()
			client.Abort()
		})
	}
}

func TestDoorbellSignalWithDescriptorsEndsTheConnection(t *testing.T) {
	client, server := newTestPair(t)
	created, err := client.NewConsumer(t.Context(),
		comch.ConsumerConfig{Receives: 1, MemorySize: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = created.Close() }()
	server.remote.mu.Lock()
	button := server.remote.consumers[created.ID()].button
	err = unix.Sendmsg(button, linux.WakeSignal, unix.UnixRights(0), nil, unix.MSG_DONTWAIT)
	server.remote.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	created.Clear()
	if created.State() == progress.Running {
		t.Error("the consumer is running")
	}
	if err := awaitEnd(t, client); !isViolation(err) {
		t.Errorf("the connection ended with %v", err)
	}
}
