// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		if err := runChild(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestKilledPeerEndsAnIdleConnection(t *testing.T) {
	for _, play := range []string{"client", "server"} {
		t.Run(play, func(t *testing.T) {
			p := connectToChild(t, play)
			if comch.HasEnded(p.connection, time.Now()) {
				t.Error("the peer has gone before")
			}
			p.child.kill()
			if !comch.HasEnded(p.connection, time.Now()) {
				t.Error("the kernel does not tell that the peer has died")
			}
			p.wantEnded(t)
		})
	}
}

func TestKilledPeerEndsABusyConnection(t *testing.T) {
	for _, play := range []string{"client-busy", "server-busy"} {
		t.Run(play, func(t *testing.T) {
			p := connectToChild(t, play)
			first, echoed := 8, 0
			for p.consumer.State() == progress.Running {
				n, err := echo(p.consumer, p.producer, first)
				if err != nil && !errors.Is(err, status.NotConnected) {
					t.Fatal(err)
				}
				if first, echoed = 0, echoed+n; echoed > 1000 && echoed-n <= 1000 {
					p.child.kill()
				}
			}
			p.wantEnded(t)
		})
	}
}

func TestKilledPeerWakesSleepers(t *testing.T) {
	for _, play := range []string{"client", "server"} {
		t.Run(play, func(t *testing.T) {
			p := connectToChild(t, play)
			for range childReceives {
				if err := sendPatiently(p.producer, []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			if !p.consumer.Arm() || !p.producer.Arm() {
				t.Fatal("armed with work although the child is idle")
			}
			p.child.kill()
			for _, waiter := range []progress.Waiter{p.consumer, p.producer} {
				awaitReadable(t, waiter.Descriptor())
				waiter.Clear()
				waiter.Disarm()
			}
			p.wantEnded(t)
		})
	}
}

func TestNameOfAKilledServerIsFree(t *testing.T) {
	directory := t.TempDir()
	provider := New(Options{Directory: directory})
	first := startChild(t, "server", directory)
	first.await(t, "listening")
	ctx := context.Background()
	if _, err := provider.Listen(ctx, comch.ServerConfig{Name: childName}); !errors.Is(err,
		status.AlreadyExist) {
		t.Fatalf("listen beside a live server: %v", err)
	}
	first.kill()
	if _, err := provider.Connect(ctx, comch.ClientConfig{Name: childName}); !errors.Is(err,
		status.NotFound) {
		t.Fatalf("connect to a dead server: %v", err)
	}
	server, err := provider.Listen(ctx, comch.ServerConfig{Name: childName})
	if err != nil {
		t.Fatalf("listen after a dead server: %v", err)
	}
	connection, err := provider.Connect(ctx, comch.ClientConfig{Name: childName})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(connection.Close(), server.Close()); err != nil {
		t.Error(err)
	}
}

func TestSocketOfAServerThatWasKilledTooEarlyIsRemoved(t *testing.T) {
	directory := t.TempDir()
	first := startChild(t, "server", directory)
	first.await(t, "listening")
	first.kill()
	for _, path := range filesBelow(t, directory) {
		if filepath.Ext(path) != lockSuffix { // as if the socket had not been given its name yet
			name := temporaryName(filepath.Base(path))
			if err := os.Rename(path, filepath.Join(filepath.Dir(path), name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	server, err := New(Options{Directory: directory}).Listen(context.Background(),
		comch.ServerConfig{Name: childName})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if left := filesBelow(t, directory); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func filesBelow(t *testing.T, directory string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(directory, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// childPeer is a connection to a child process, with its data path.
type childPeer struct {
	child      *child
	connection comch.Connection
	consumer   comch.Consumer
	producer   comch.Producer
}

// connectToChild connects to a child with the given role.
func connectToChild(t *testing.T, role string) *childPeer {
	t.Helper()
	directory := t.TempDir()
	provider := New(Options{Directory: directory})
	p := &childPeer{}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	var err error
	if role == "server" || role == "server-busy" {
		p.child = startChild(t, role, directory)
		p.child.await(t, "listening")
		p.connection, err = provider.Connect(ctx, comch.ClientConfig{Name: childName})
	} else {
		server, listenErr := provider.Listen(ctx, comch.ServerConfig{Name: childName})
		if listenErr != nil {
			t.Fatal(listenErr)
		}
		t.Cleanup(func() { _ = server.Close() })
		p.child = startChild(t, role, directory)
		p.connection, err = server.Accept(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if p.consumer, p.producer, err = openDataPath(p.connection); err != nil {
		t.Fatal(err)
	}
	p.child.await(t, "ready")
	t.Cleanup(func() {
		p.connection.Abort()
		_ = p.consumer.Close()
		_ = p.producer.Close()
	})
	return p
}

// wantEnded checks every effect of the peer's death.
func (p *childPeer) wantEnded(t *testing.T) {
	t.Helper()
	if err := awaitEnd(t, p.connection); !errors.Is(err, status.ConnectionReset) {
		t.Errorf("the connection ended with %v", err)
	}
	if p.consumer.State() == progress.Running || p.producer.State() == progress.Running {
		t.Errorf("consumer is %v, producer is %v", p.consumer.State(), p.producer.State())
	}
	if err := p.producer.Send([]byte("x"), nil); !errors.Is(err, status.NotConnected) {
		t.Errorf("send to a dead peer: %v", err)
	}
	if err := errors.Join(p.consumer.Close(), p.producer.Close(),
		p.connection.Close()); err != nil {
		t.Errorf("clean up after a dead peer: %v", err)
	}
}

func awaitReadable(t *testing.T, descriptor int) {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 60_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("descriptor does not become readable: poll returned %d, %v", n, err)
		}
		return
	}
}

// echo sends received messages back, after sending first messages of its own, and returns how many
// it received.
func echo(consumer comch.Consumer, producer comch.Producer, first int) (int, error) {
	var received [4]comch.Received
	for range first {
		if err := sendPatiently(producer, []byte("first")); err != nil {
			return 0, err
		}
	}
	n := consumer.Poll(received[:])
	for _, r := range received[:n] {
		if err := sendPatiently(producer,
			consumer.Memory()[r.Offset:r.Offset+r.Length]); err != nil {
			return n, err
		}
		if err := consumer.PostReceive(r.Offset, 64, r.UserData); err != nil {
			return n, err
		}
	}
	consumer.Flush()
	if n == 0 {
		runtime.Gosched()
	}
	return n, nil
}

func sendPatiently(producer comch.Producer, message []byte) error {
	for {
		err := producer.Send(message, nil)
		if !errors.Is(err, status.Again) {
			producer.Flush()
			return err
		}
		runtime.Gosched()
	}
}

// Environment of a child process: this test binary, as a peer that can be killed.
const (
	childRole      = "ZC_RELAY_TEST_CHILD"
	childDirectory = "ZC_RELAY_TEST_DIRECTORY"
	childName      = "channel"
)

// child is a peer in another process.
type child struct {
	command *exec.Cmd
	output  *bufio.Scanner
}

// startChild starts a peer.
func startChild(t *testing.T, role, directory string) *child {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childRole+"="+role, childDirectory+"="+directory)
	command.Stderr = os.Stderr
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{command: command, output: bufio.NewScanner(stdout)}
	t.Cleanup(c.kill)
	return c
}

// await waits until the child prints a line.
func (c *child) await(t *testing.T, line string) {
	t.Helper()
	for c.output.Scan() {
		if strings.TrimSpace(c.output.Text()) == line {
			return
		}
	}
	t.Fatalf("the child exited before it printed %q: %v", line, c.output.Err())
}

// kill kills the child with SIGKILL.
func (c *child) kill() {
	_ = c.command.Process.Kill()
	_ = c.command.Wait()
}

// runChild is a peer with the given role until it is killed or its parent exits.
func runChild(role string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	provider := New(Options{Directory: os.Getenv(childDirectory)})
	connection, err := openConnection(provider, strings.HasPrefix(role, "server"))
	if err != nil {
		return err
	}
	consumer, producer, err := openDataPath(connection)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if strings.HasSuffix(role, "busy") {
		return echoForever(consumer, producer)
	}
	select {}
}

func openConnection(provider comch.Provider, serve bool) (comch.Connection, error) {
	ctx := context.Background()
	if !serve {
		return provider.Connect(ctx, comch.ClientConfig{Name: childName})
	}
	server, err := provider.Listen(ctx, comch.ServerConfig{Name: childName})
	if err != nil {
		return nil, err
	}
	fmt.Println("listening")
	return server.Accept(ctx)
}

const childReceives = 16

// openDataPath creates a consumer with posted receives, and a producer for the peer's first
// consumer.
func openDataPath(connection comch.Connection) (comch.Consumer, comch.Producer, error) {
	ctx := context.Background()
	consumer, err := connection.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: childReceives, MemorySize: 64 * childReceives})
	if err != nil {
		return nil, nil, err
	}
	for i := range uint32(childReceives) {
		if err := consumer.PostReceive(64*i, 64, uint64(i)); err != nil {
			return nil, nil, err
		}
	}
	consumer.Flush()
	event, err := connection.NextConsumerEvent(ctx)
	if err != nil {
		return nil, nil, err
	}
	producer, err := connection.NewProducer(ctx, event.ID)
	return consumer, producer, err
}

// echoForever echoes every message until the connection ends.
func echoForever(consumer comch.Consumer, producer comch.Producer) error {
	for {
		if _, err := echo(consumer, producer, 0); err != nil {
			return err
		}
	}
}
