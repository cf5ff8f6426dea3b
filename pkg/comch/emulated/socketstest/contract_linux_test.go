// SPDX-License-Identifier: Apache-2.0

package socketstest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var self = comch.Peer{Known: true, PID: os.Getpid(), UID: uint32(os.Geteuid()),
	GID: uint32(os.Getegid())}

var storage = comch.Service{Device: "03:00.0", Representor: "b1:00.0", Name: "storage"}

// TestSocketsKeepTheContract holds the sockets in memory to what the kernel's do.
func TestSocketsKeepTheContract(t *testing.T) {
	tests := map[string]func(*testing.T, emulated.Sockets){
		"packets stay whole and in order":          packetsStayWhole,
		"descriptors are duplicated":               descriptorsAreDuplicated,
		"packets beyond the buffers are cut":       packetsAreCut,
		"an orderly end follows the packets":       orderlyEnd,
		"an end with unread packets is a reset":    resetEnd,
		"unread descriptors are closed":            unreadDescriptorsAreClosed,
		"a disconnection follows the packets":      disconnection,
		"the end can be asked for":                 endCanBeAskedFor,
		"reads have deadlines":                     readsHaveDeadlines,
		"writes to a full queue have deadlines":    writesHaveDeadlines,
		"close ends a read":                        closeEndsRead,
		"a read makes room for a write":            readMakesRoom,
		"services have one name each":              servicesHaveNames,
		"clients meet servers":                     clientsMeetServers,
		"closing a listener resets its clients":    closingResetsClients,
		"a name without a server is not found":     missingNames,
		"servers of one name on two devices clash": namesClash,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Run("kernel", func(t *testing.T) {
				test(t, emulated.UnixSockets(t.TempDir()))
			})
			t.Run("memory", func(t *testing.T) {
				test(t, NewNetwork(Options{}).NewProcess(self))
			})
		})
	}
}

func newPair(t *testing.T, sockets emulated.Sockets) (first, second emulated.Socket) {
	t.Helper()
	first, second, err := sockets.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = first.Close(), second.Close() })
	return first, second
}

func write(t *testing.T, s emulated.Socket, packet string, descriptors ...int) {
	t.Helper()
	if err := s.WritePacket([]byte(packet), descriptors); err != nil {
		t.Fatalf("write %q: %v", packet, err)
	}
}

// read returns the next packet and its descriptors, which it closes at the end of the test.
func read(t *testing.T, s emulated.Socket) (string, []int, error) {
	t.Helper()
	var packet [64]byte
	var passed [2]int
	n, count, err := s.ReadPacket(packet[:], passed[:])
	descriptors := slices.Clone(passed[:count])
	t.Cleanup(func() { closeAll(descriptors) })
	return string(packet[:n]), descriptors, err
}

func wantPacket(t *testing.T, s emulated.Socket, want string) {
	t.Helper()
	if got, _, err := read(t, s); err != nil || got != want {
		t.Errorf("got packet %q and error %v, want %q", got, err, want)
	}
}

func wantReadError(t *testing.T, s emulated.Socket, want error) {
	t.Helper()
	if got, _, err := read(t, s); !errors.Is(err, want) {
		t.Errorf("got packet %q and error %v, want %v", got, err, want)
	}
}

func packetsStayWhole(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	for _, packet := range []string{"one", "two", "three"} {
		write(t, a, packet)
		write(t, b, "re: "+packet)
	}
	for _, packet := range []string{"one", "two", "three"} {
		wantPacket(t, b, packet)
		wantPacket(t, a, "re: "+packet)
	}
	if peer, err := a.Peer(); err != nil || peer != self {
		t.Errorf("got peer %+v and error %v, want %+v", peer, err, self)
	}
}

// newFile returns a file that holds "content".
func newFile(t *testing.T) int {
	t.Helper()
	file, err := unix.MemfdCreate("socketstest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(file) })
	if _, err := unix.Write(file, []byte("content")); err != nil {
		t.Fatal(err)
	}
	return file
}

func descriptorsAreDuplicated(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	file := newFile(t)
	write(t, a, "files", file, file)
	_, passed, err := read(t, b)
	if err != nil || len(passed) != 2 {
		t.Fatalf("got %d descriptors and error %v", len(passed), err)
	}
	for _, descriptor := range passed {
		content := make([]byte, 7)
		n, err := unix.Pread(descriptor, content, 0)
		if err != nil || !bytes.Equal(content[:n], []byte("content")) || descriptor == file {
			t.Errorf("descriptor %d of file %d: read %q, error %v", descriptor, file, content[:n],
				err)
		}
	}
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func packetsAreCut(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	file := newFile(t)
	write(t, a, "cut", file, file, file, file)
	write(t, a, "next")
	before := countDescriptors(t)
	packet, passed := make([]byte, 2), make([]int, 2)
	n, count, err := b.ReadPacket(packet, passed)
	closeAll(passed[:count])
	if string(packet[:n]) != "cu" || count != 2 || !errors.Is(err, emulated.ErrTruncated) {
		t.Errorf("got %q, %d descriptors, and error %v", packet[:n], count, err)
	}
	if after := countDescriptors(t); after > before {
		t.Errorf("%d descriptors after the read, %d before", after, before)
	}
	wantPacket(t, b, "next")
}

func orderlyEnd(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	write(t, a, "last")
	_ = a.Close()
	if err := b.WritePacket([]byte("lost"), nil); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to a closed socket: %v", err)
	}
	wantPacket(t, b, "last")
	wantReadError(t, b, io.EOF)
	wantReadError(t, b, io.EOF)
	wantReadError(t, a, net.ErrClosed)
	if err := a.WritePacket([]byte("x"), nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
}

func resetEnd(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	write(t, a, "last")
	write(t, b, "unread")
	_ = a.Close()
	wantReadError(t, b, syscall.ECONNRESET)
	wantPacket(t, b, "last")
	wantReadError(t, b, io.EOF)

	a, b = newPair(t, sockets)
	write(t, b, "unread")
	_ = a.Close()
	for _, want := range []error{syscall.ECONNRESET, syscall.EPIPE} {
		if err := b.WritePacket([]byte("lost"), nil); !errors.Is(err, want) {
			t.Errorf("write to a socket closed with unread packets: %v, want %v", err, want)
		}
	}
}

func disconnection(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	write(t, a, "last")
	write(t, b, "unread")
	a.Disconnect()
	a.Disconnect()
	wantPacket(t, b, "last")
	wantReadError(t, b, io.EOF)
	wantPacket(t, a, "unread")
	wantReadError(t, a, io.EOF)
	for _, s := range []emulated.Socket{a, b} {
		if err := s.WritePacket([]byte("lost"), nil); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to a disconnected socket: %v", err)
		}
	}
	_ = a.Close()
	wantReadError(t, b, io.EOF)
	a.Disconnect()

	a, b = newPair(t, sockets)
	write(t, b, "unread")
	a.Disconnect()
	_ = a.Close()
	wantReadError(t, b, syscall.ECONNRESET)
	wantReadError(t, b, io.EOF)
}

func endCanBeAskedFor(t *testing.T, sockets emulated.Sockets) {
	for name, end := range map[string]func(emulated.Socket){
		"close":      func(s emulated.Socket) { _ = s.Close() },
		"disconnect": func(s emulated.Socket) { s.Disconnect() },
	} {
		a, b := newPair(t, sockets)
		fill(t, a)
		reading := make(chan error)
		go func() {
			_, _, err := a.ReadPacket(make([]byte, 1), nil)
			reading <- err
		}()
		if a.HasPeerLeft() || b.HasPeerLeft() {
			t.Errorf("%s: a peer has left before", name)
		}
		end(a)
		if !b.HasPeerLeft() {
			t.Errorf("%s: the packets before the end hide it", name)
		}
		if err := <-reading; err == nil {
			t.Errorf("%s: the other side has read something", name)
		}
		_ = b.Close()
		if !b.HasPeerLeft() {
			t.Errorf("%s: a closed socket has a peer", name)
		}
	}
}

func unreadDescriptorsAreClosed(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	file := newFile(t)
	var watched [2]int // closing the last duplicate of the second makes the first readable
	if err := unix.Pipe2(watched[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(watched[0]) }()
	write(t, a, "unread", file, watched[1])
	_ = unix.Close(watched[1])
	if _, err := unix.Read(watched[0], make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("the passed descriptor is closed already: %v", err)
	}
	_ = b.Close()
	if n, err := unix.Read(watched[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the passed descriptor is still open: read %d, error %v", n, err)
	}
}

func readsHaveDeadlines(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	write(t, a, "early")
	if err := b.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	wantReadError(t, b, os.ErrDeadlineExceeded)
	if err := b.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	wantPacket(t, b, "early")
	if err := b.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	wantReadError(t, b, os.ErrDeadlineExceeded)
	write(t, b, "reads do not limit writes")
}

// fill writes until the queue is full.
func fill(t *testing.T, s emulated.Socket) (packets int) {
	t.Helper()
	packet := make([]byte, 32)
	for {
		if err := s.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		err := s.WritePacket(packet, nil)
		switch {
		case err == nil:
			packets++
		case errors.Is(err, os.ErrDeadlineExceeded):
			return packets
		default:
			t.Fatal(err)
		}
	}
}

func writesHaveDeadlines(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	if fill(t, a) == 0 {
		t.Error("an empty queue takes no packet")
	}
	write(t, b, "the other direction is free")
}

func readMakesRoom(t *testing.T, sockets emulated.Sockets) {
	a, b := newPair(t, sockets)
	packets := fill(t, a)
	if err := a.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	written := make(chan error)
	go func() { written <- a.WritePacket([]byte("more"), nil) }()
	for range packets {
		if _, _, err := read(t, b); err != nil {
			t.Fatal(err)
		}
	}
	wantPacket(t, b, "more")
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func closeEndsRead(t *testing.T, sockets emulated.Sockets) {
	a, _ := newPair(t, sockets)
	failed := make(chan error)
	go func() {
		_, _, err := a.ReadPacket(make([]byte, 1), nil)
		failed <- err
	}()
	_ = a.Close()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := a.SetReadDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("set a deadline after close: %v", err)
	}
}

func listen(t *testing.T, sockets emulated.Sockets, service comch.Service,
) emulated.SocketListener {
	t.Helper()
	listener, err := sockets.Listen(context.Background(), service, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func connect(t *testing.T, sockets emulated.Sockets) emulated.Socket {
	t.Helper()
	s, err := sockets.Connect(context.Background(), storage.Representor, storage.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func servicesHaveNames(t *testing.T, sockets emulated.Sockets) {
	first := listen(t, sockets, storage)
	_, err := sockets.Listen(context.Background(), storage, false)
	if !errors.Is(err, status.AlreadyExist) {
		t.Errorf("listen under a name that is in use: %v", err)
	}
	services, err := sockets.Services()
	if err != nil || !slices.Equal(services, []comch.Service{storage}) {
		t.Errorf("got services %v and error %v", services, err)
	}
	if err := first.OpenToEveryUser(); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if services, err = sockets.Services(); err != nil || len(services) != 0 {
		t.Errorf("got services %v and error %v after close", services, err)
	}
	listen(t, sockets, storage)
}

func clientsMeetServers(t *testing.T, sockets emulated.Sockets) {
	listener := listen(t, sockets, storage)
	for _, packet := range []string{"first", "second"} {
		write(t, connect(t, sockets), packet)
	}
	for _, packet := range []string{"first", "second"} {
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = accepted.Close() })
		wantPacket(t, accepted, packet)
	}
	ended := make(chan error)
	go func() {
		_, err := listener.Accept()
		ended <- err
	}()
	_ = listener.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

func closingResetsClients(t *testing.T, sockets emulated.Sockets) {
	listener := listen(t, sockets, storage)
	client := connect(t, sockets)
	_ = listener.Close()
	wantReadError(t, client, syscall.ECONNRESET)
	wantReadError(t, client, io.EOF)
}

func missingNames(t *testing.T, sockets emulated.Sockets) {
	listen(t, sockets, storage)
	for _, where := range [][2]string{{"b1:00.1", storage.Name}, {storage.Representor, "other"}} {
		_, err := sockets.Connect(context.Background(), where[0], where[1])
		if !errors.Is(err, status.NotFound) {
			t.Errorf("connect to %q: %v", where, err)
		}
	}
}

func namesClash(t *testing.T, sockets emulated.Sockets) {
	other := storage
	other.Device = "03:00.1"
	listen(t, sockets, storage)
	listen(t, sockets, other)
	_, err := sockets.Connect(context.Background(), storage.Representor, storage.Name)
	if !errors.Is(err, status.InvalidValue) {
		t.Errorf("got %v", err)
	}
}
