// SPDX-License-Identifier: Apache-2.0

package shm_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// peerVariable makes the test binary a peer that connects to this address and writes without end.
const peerVariable = "SHM_TEST_PEER"

func TestMain(m *testing.M) {
	if address := os.Getenv(peerVariable); address != "" {
		fmt.Println(runPeer(netip.MustParseAddrPort(address)))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const (
	allRights = memory.LocalWrite | memory.RemoteRead | memory.RemoteWrite
	bytesEach = 1 << 20
	// deadline bounds each wait for another process. No test depends on being faster.
	deadline = 2 * time.Minute
)

// end is one end of a connection in a process.
type end struct {
	device rdma.Device
	domain rdma.ProtectionDomain
	queue  rdma.CompletionQueue
	region *memory.Region
	memory rdma.MemoryRegion
	conn   rdma.Connection
}

func newEnd() (*end, error) {
	e := &end{}
	var err error
	if e.device, err = shm.New(shm.Options{}).Open(netip.MustParseAddr("127.0.0.1")); err != nil {
		return nil, err
	}
	if e.domain, err = e.device.NewProtectionDomain(); err != nil {
		return nil, err
	}
	if e.queue, err = e.device.NewCompletionQueue(64); err != nil {
		return nil, err
	}
	if e.region, err = memory.AllocReadOnly("shm test", bytesEach); err != nil {
		return nil, err
	}
	e.memory, err = e.domain.Register(e.region, allRights)
	return e, err
}

func (e *end) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{Domain: e.domain, Queue: e.queue, SendRequests: 32,
		ReceiveRequests: 32, InboundReads: 4, OutboundReads: 4,
		Lent: []rdma.LentMemory{{Region: e.memory}}}
}

// runPeer waits for the key of the other side's memory and then writes to it until the connection
// ends, from lent memory and from its own in turn.
func runPeer(address netip.AddrPort) error {
	runtime.LockOSThread()
	e, err := newEnd()
	if err != nil {
		return err
	}
	own, err := e.domain.Register(memory.Wrap(make([]byte, bytesEach)), allRights)
	if err != nil {
		return err
	}
	fill := e.region.Bytes()
	for i := range fill {
		fill[i] = 0xff
	}
	if e.conn, err = e.device.Connect(context.Background(), address, e.config()); err != nil {
		return err
	}
	data := e.conn.Parameters().PrivateData
	key := uint32(data[0])<<24 | uint32(data[1])<<16 | uint32(data[2])<<8 | uint32(data[3])
	var completions [64]rdma.Completion
	for {
		for _, m := range []rdma.MemoryRegion{e.memory, own} {
			request := rdma.SendRequest{Opcode: rdma.OpWrite, RemoteKey: key,
				Local: rdma.Segment{Key: m.LocalKey(), Length: bytesEach}}
			_ = e.conn.PostSend([]rdma.SendRequest{request})
			e.conn.Flush()
		}
		for _, c := range completions[:e.queue.Poll(completions[:])] {
			if c.Opcode == rdma.OpDisconnected {
				return e.conn.Err()
			}
		}
	}
}

// withPeer starts a peer in another process and returns this side once the peer's data arrives.
func withPeer(t *testing.T) (*end, *exec.Cmd) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	e, err := newEnd()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := e.device.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	peer := exec.Command(os.Args[0])
	peer.Env = append(os.Environ(), peerVariable+"="+listener.Address().String())
	var output bytes.Buffer
	peer.Stdout, peer.Stderr = &output, &output
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = peer.Process.Kill()
		_ = peer.Wait()
		e.close(t)
		if t.Failed() {
			t.Logf("the peer said: %s", &output)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	request, err := listener.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	config, key := e.config(), e.memory.RemoteKey()
	config.PrivateData = []byte{byte(key >> 24), byte(key >> 16), byte(key >> 8), byte(key)}
	if e.conn, err = request.Accept(ctx, config); err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	e.pollUntil(t, "data", func(int) bool { return e.region.Bytes()[bytesEach-1] == 0xff })
	return e, peer
}

// pollUntil polls until done, which gets the number of ended connections, reports true.
func (e *end) pollUntil(t *testing.T, what string, done func(ended int) bool) {
	t.Helper()
	ended := 0
	var completions [64]rdma.Completion
	for start := time.Now(); ; runtime.Gosched() {
		for _, c := range completions[:e.queue.Poll(completions[:])] {
			if c.Opcode == rdma.OpDisconnected {
				ended++
			}
		}
		if done(ended) {
			return
		}
		if time.Since(start) > deadline {
			t.Fatalf("%s did not come within %v", what, deadline)
		}
	}
}

func (e *end) close(t *testing.T) {
	t.Helper()
	e.conn.Close()
	var completions [64]rdma.Completion
	for e.queue.Poll(completions[:]) > 0 {
	}
	for _, close := range []func() error{e.memory.Deregister, e.region.Close, e.queue.Close,
		e.domain.Close, e.device.Close} {
		if err := close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAKilledPeerEndsTheConnection(t *testing.T) {
	e, peer := withPeer(t)
	if err := peer.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	e.pollUntil(t, "the end", func(ended int) bool { return ended == 1 })
	if err := e.conn.Err(); status.CodeOf(err) != status.ConnectionReset {
		t.Errorf("the connection ended with %v", err)
	}
}

func TestAKilledPeerWakesASleeper(t *testing.T) {
	e, peer := withPeer(t)
	if err := peer.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	e.pollUntil(t, "quiet", func(int) bool { return e.queue.Arm() })
	if err := peer.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	fds := []unix.PollFd{{Fd: int32(e.queue.Descriptor()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(deadline.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			t.Fatalf("the sleeper was not woken: %v", err)
		}
		break
	}
	e.queue.Clear()
	e.queue.Disarm()
	e.pollUntil(t, "the end", func(ended int) bool { return ended == 1 })
}

// TestNothingIsWrittenForAStoppedPeerAfterRevocation stops a peer in the middle of its Writes,
// takes its access away, and lets it continue.
func TestNothingIsWrittenForAStoppedPeerAfterRevocation(t *testing.T) {
	for name, revoke := range map[string]func(e *end) error{
		"deregister": func(e *end) error { return e.memory.Deregister() },
		"close":      func(e *end) error { e.conn.Close(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			e, peer := withPeer(t)
			if err := peer.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if err := revoke(e); err != nil {
				t.Fatal(err)
			}
			clear(e.region.Bytes())
			if err := peer.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			e.pollUntil(t, "the end", func(ended int) bool { return ended == 1 })
			exited := make(chan error, 1)
			go func() { exited <- peer.Wait() }()
			select {
			case <-exited: // the peer has seen the end and has done all that it could
			case <-time.After(deadline):
				t.Fatal("the peer does not see the end")
			}
			if len(bytes.TrimLeft(e.region.Bytes(), "\x00")) > 0 {
				t.Error("memory was written after the revocation")
			}
		})
	}
}
