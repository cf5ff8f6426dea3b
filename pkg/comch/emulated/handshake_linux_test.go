// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TestConnectFailsAfterItsContextEnds queues the server's welcome in the socket, so that the
// handshake could succeed although its context has ended.
func TestConnectFailsAfterItsContextEnds(t *testing.T) {
	reason := errors.New("canceled by the test")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(reason)
	for range 100 {
		c, server := newHalfConnection(t, clientRole)
		own := greeting{maxMessageSize: testTerms.maxMessageSize,
			receiveQueue: testTerms.receiveQueue}
		welcome := own.welcome()
		if err := server.write(&welcome, descriptors{}); err != nil {
			t.Fatal(err)
		}
		if _, err := greetServer(ctx, c.socket, own); !errors.Is(err, reason) {
			t.Errorf("got %v", err)
		}
		c.socket.close()
		server.close()
	}
}

func TestInvalidHelloIsRejectedWithTheReason(t *testing.T) {
	size := uint32(defaultLimits.MaxMessageSize)
	cases := map[string]struct {
		hello frame
		code  status.Code
	}{
		"another version": {frame{kind: frameHello, fields: [maxFields]uint32{protocolMagic,
			protocolVersion + 1, size, 1}}, status.UnsupportedVersion},
		"another message size": {frame{kind: frameHello, fields: [maxFields]uint32{protocolMagic,
			protocolVersion, size - 1, 1}}, status.InvalidValue},
		"no receive queue": {frame{kind: frameHello, fields: [maxFields]uint32{protocolMagic,
			protocolVersion, size, 0}}, status.InvalidValue},
		"huge receive queue": {frame{kind: frameHello, fields: [maxFields]uint32{protocolMagic,
			protocolVersion, size, 0xffffffff}}, status.InvalidValue},
		"wrong magic": {frame{kind: frameHello, fields: [maxFields]uint32{1,
			protocolVersion, size, 1}}, status.Unexpected},
		"not a hello": {frame{kind: frameMessage, body: []byte("GET / HTTP/1.1")},
			status.Unexpected},
	}
	server := listenIn(t, shortDirectory(t), comch.ServerConfig{Name: "storage"})
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := dialRaw(t, server)
			if err := s.write(&c.hello, descriptors{}); err != nil {
				t.Fatal(err)
			}
			reply, _, err := s.read()
			if err != nil {
				t.Fatal(err)
			}
			if reply.kind != frameGoodbye || reply.fields[0] != uint32(c.code) ||
				len(reply.body) == 0 {
				t.Errorf("reply is %v %v %q, want code %v",
					reply.kind, reply.fields, reply.body, c.code)
			}
		})
	}
}

func TestSilentClientsDoNotBlockOthers(t *testing.T) {
	directory := shortDirectory(t)
	server := listenIn(t, directory, comch.ServerConfig{Name: "storage"})
	first := dialRaw(t, server)
	for range 2 * maxHandshakes {
		dialRaw(t, server)
	}
	if _, _, err := first.read(); err == nil {
		t.Error("the oldest silent client got a reply")
	}
	connection, err := New(Options{Directory: directory}).Connect(context.Background(),
		comch.ClientConfig{Name: "storage"})
	if err != nil {
		t.Fatal(err)
	}
	if err := connection.Close(); err != nil {
		t.Error(err)
	}
}

func TestSilentClientIsDisconnected(t *testing.T) {
	t.Parallel() // it takes handshakeTimeout
	s := dialRaw(t, listenIn(t, shortDirectory(t), comch.ServerConfig{Name: "storage"}))
	if _, _, err := s.read(); err == nil {
		t.Error("a silent client got a reply")
	}
}

func TestConnectToASilentServerEndsWithItsContext(t *testing.T) {
	directory := filepath.Join(shortDirectory(t), "comch")
	device := filepath.Join(directory, DefaultRepresentor, DefaultDevice)
	if err := os.MkdirAll(device, 0o700); err != nil {
		t.Fatal(err)
	}
	silent, err := net.ListenUnix("unixpacket",
		&net.UnixAddr{Name: filepath.Join(device, "storage"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = New(Options{Directory: directory}).Connect(ctx, comch.ClientConfig{Name: "storage"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connect to a silent server: %v", err)
	}
}

// dialRaw connects to a server without sending a hello.
func dialRaw(t *testing.T, server comch.Server) *frameSocket {
	t.Helper()
	conn, err := net.DialUnix("unixpacket",
		nil, &net.UnixAddr{Name: server.Address(), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	s := newFrameSocket(newUnixSocket(conn), defaultLimits.MaxMessageSize)
	s.setTimeout(time.Minute)
	t.Cleanup(s.close)
	return s
}

// shortDirectory returns a directory whose path fits into a socket address.
func shortDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "comch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return directory
}

// TestOnlyAllowedUsersAreAdmitted connects from a thread with another effective user, which is what
// the kernel reports as the peer's.
func TestOnlyAllowedUsersAreAdmitted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	for name, c := range map[string]struct {
		admission comch.Admission
		allow     bool
	}{
		"nobody else":  {comch.Admission{}, false},
		"everybody":    {comch.Admission{AllowAnyUser: true}, true},
		"this user":    {comch.Admission{AllowUsers: []uint32{1000, 65534}}, true},
		"another user": {comch.Admission{AllowUsers: []uint32{1000}}, false},
	} {
		allow := c.allow
		t.Log(name)
		directory := filepath.Join(shortDirectory(t), "comch")
		server := listenIn(t, directory,
			comch.ServerConfig{Name: "storage", Admission: c.admission})
		for path := server.Address(); len(path) >= len(directory)-len("/comch"); path = filepath.Dir(path) {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(server.Address(), 0o666); err != nil {
			t.Fatal(err)
		}
		reply := helloAs(t, server.Address(), 65534)
		if allow && reply.kind != frameWelcome {
			t.Errorf("the server replied with %v %q to an allowed user", reply.fields, reply.body)
		}
		if !allow && (reply.kind != frameGoodbye ||
			reply.fields[0] != uint32(status.NotPermitted)) {
			t.Errorf("the server replied with kind %d, %v %q to another user",
				reply.kind, reply.fields, reply.body)
		}
	}
}

// helloAs sends a hello as another user and returns the reply.
func helloAs(t *testing.T, path string, user uintptr) frame {
	t.Helper()
	connected := make(chan int, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		const unchanged = ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, unchanged, user,
			unchanged); errno != 0 {
			t.Errorf("become user %d: %v", user, errno)
		}
		descriptor, err := testkit.DialPackets(path, 0)
		if err != nil {
			t.Error(err)
		}
		connected <- descriptor
	}()
	s := socketOf(t, <-connected)
	defer s.close()
	s.setTimeout(time.Minute)
	s.packet = make([]byte, 1<<12)
	hello := greeting{defaultLimits.MaxMessageSize, 1}.hello()
	_ = s.write(&hello, descriptors{}) // the server may have closed the socket
	reply, _, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func TestAdmissionChangesWhileAServerListens(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "comch")
	server := listenIn(t, directory,
		comch.ServerConfig{Name: "storage", Admission: comch.Admission{MaxClients: 1}})
	provider := New(Options{Directory: directory})
	connect := func() error {
		t.Helper()
		connection, err := provider.Connect(t.Context(), comch.ClientConfig{Name: "storage"})
		if err == nil {
			t.Cleanup(connection.Abort)
		}
		return err
	}
	if err := connect(); err != nil {
		t.Fatal(err)
	}
	if err := connect(); !errors.Is(err, status.Full) {
		t.Errorf("a second client: %v", err)
	}
	if err := server.SetAdmission(comch.Admission{MaxClients: 2,
		AllowUsers: []uint32{65534}}); err != nil {
		t.Fatal(err)
	}
	if err := connect(); err != nil {
		t.Errorf("a second client after the change: %v", err)
	}
	for path, want := range map[string]os.FileMode{
		directory: os.ModeDir | 0o755, filepath.Dir(server.Address()): os.ModeDir | 0o755,
		server.Address(): os.ModeSocket | 0o666,
	} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v: the server allows other users",
				path, info.Mode(), want)
		}
	}
	if err := server.SetAdmission(comch.Admission{MaxClients: 1 << 30}); !errors.Is(err,
		status.InvalidValue) {
		t.Errorf("more clients than the provider supports: %v", err)
	}
}
