// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var brokers atomic.Int32

// startBroker starts a broker that answers as a test wants, and returns a descriptor of memory that
// it has exported.
func startBroker(t *testing.T, answer func(importer *net.UnixConn, success []byte)) []byte {
	t.Helper()
	d := broker.Descriptor{Kind: broker.KindPCI, Access: broker.PCIReadWrite, Length: 4096,
		Name: fmt.Sprintf("zc-broker-test-%d-%d", os.Getpid(), brokers.Add(1))}
	listener, err := net.Listen(broker.Network, "@"+d.Name)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			importer, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := importer.Read(make([]byte, len(d.ID))); err == nil {
				success := broker.Reply{Access: d.Access, Length: d.Length}
				answer(importer.(*net.UnixConn), success.Encode())
			}
			_ = importer.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	return d.Encode()
}

// handOut sends the answer of a broker with descriptors. The importer may have given up.
func handOut(importer *net.UnixConn, answer []byte, descriptors ...int) {
	_, _, _ = importer.WriteMsgUnix(answer, unix.UnixRights(descriptors...), nil)
}

// TestImportsDoNotWaitForDescriptorsOfABroker imports from a broker whose file cannot be closed.
// The descriptor is the importer's alone only if the broker is faster, so the test tries it until
// one is stuck, and charged.
func TestImportsDoNotWaitForDescriptorsOfABroker(t *testing.T) {
	for name, others := range map[string][]int{"memory": nil, "behind the memory": {0}} {
		t.Run(name, func(t *testing.T) {
			c, _ := newServedConnection(t, serverRole)
			c.brokerTimeout = 50 * time.Millisecond
			before := c.account.current()
			descriptors, answered := make(chan int, 1), make(chan struct{}, 1)
			descriptor := startBroker(t, func(importer *net.UnixConn, success []byte) {
				stuck := <-descriptors
				handOut(importer, success, append(others, stuck)...)
				go closeDescriptor(stuck) // blocks if the importer is faster
				answered <- struct{}{}
			})
			var release func()
			for deadline, isStuck := time.Now().Add(testkit.Patience), false; !isStuck; {
				if time.Now().After(deadline) {
					t.Fatal("no descriptor was stuck and charged")
				}
				var stuck int
				stuck, release = blockingDescriptor(t)
				descriptors <- stuck
				var err error
				wantNoWait(t, release, func() { _, _, err = c.ImportMemory(descriptor) })
				<-answered
				isStuck = errors.Is(err, status.TimeOut) &&
					!c.cleanup.waitFor(0, time.Second, nil) &&
					c.account.current().descriptors > before.descriptors
				if !isStuck {
					release()
					c.cleanup.waitFor(0, testkit.Patience, nil)
				}
			}
			wantNoWait(t, release, func() {
				c.Abort()
				c.awaitGoroutines(testkit.Patience)
			})
			release()
			if !c.cleanup.waitFor(0, testkit.Patience, nil) {
				t.Error("the import is not cleaned up")
			}
			if held := c.account.current(); held != (holdings{}) {
				t.Errorf("the connection still holds %+v", held)
			}
		})
	}
}

// TestClosingImportedMemoryDoesNotWaitForItsBroker closes a region whose broker has queued a
// descriptor that cannot be closed.
func TestClosingImportedMemoryDoesNotWaitForItsBroker(t *testing.T) {
	c, _ := newServedConnection(t, serverRole)
	before := c.account.current()
	file := memfd(t, 4096, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	releases := make(chan func(), 1)
	descriptor := startBroker(t, func(importer *net.UnixConn, success []byte) {
		handOut(importer, success, file)
		stuck, release := blockingDescriptor(t)
		handOut(importer, []byte{1}, stuck)
		closeDescriptor(stuck)
		releases <- release
	})
	c.brokerTimeout = testkit.Patience
	region, access, err := c.ImportMemory(descriptor)
	if err != nil || access&memory.PCIWrite == 0 {
		t.Fatalf("rights %#x, error %v", access, err)
	}
	held := c.account.current()
	if held.descriptors != before.descriptors+brokerHoldings.descriptors {
		t.Errorf("the connection holds %d descriptors with an import, and %d before",
			held.descriptors, before.descriptors)
	}
	release := <-releases
	wantNoWait(t, release, func() {
		if err := region.Close(); err != nil {
			t.Error(err)
		}
	})
	if now := c.account.current(); now != held {
		t.Errorf("what cannot be closed is not charged: %+v, %+v before", now, held)
	}
	release()
	if !c.cleanup.waitFor(0, testkit.Patience, nil) {
		t.Error("the import is not cleaned up")
	}
	if now := c.account.current(); now != before {
		t.Errorf("the connection holds %+v, and %+v before", now, before)
	}
}
