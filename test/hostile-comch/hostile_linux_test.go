// Package hostilecomch attacks a Comch server from other processes, and looks
// whether the server and its honest clients notice.

package hostilecomch

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(attackVariable); name != "" {
		if err := runAttack(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// echoes is how many messages an honest client exchanges while it is made
// sure that a hostile one does not disturb it.
const echoes = 200

func TestHostileClientHarmsOnlyItself(t *testing.T) {
	for name := range attacks {
		t.Run(name, func(t *testing.T) {
			directory := shortDirectory(t)
			server := startServer(t, directory)
			honest := newHonestClient(t, directory)
			honest.exchange(t, echoes)
			stop := startAttack(t, name, directory)
			honest.exchange(t, echoes)
			exchangeAsNewcomer(t, directory)
			honest.exchange(t, echoes)
			stop()
			awaitSessions(t, server, 1)
			honest.exchange(t, echoes)
		})
	}
}

// exchangeAsNewcomer connects while the attack goes on.
func exchangeAsNewcomer(t *testing.T, directory string) {
	t.Helper()
	newcomer := newHonestClient(t, directory)
	newcomer.exchange(t, echoes)
	newcomer.leave(t)
}

// startAttack starts a hostile process and returns what kills it.
func startAttack(t *testing.T, name, directory string) func() {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), attackVariable+"="+name, directoryVariable+"="+directory)
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
	stop := sync.OnceFunc(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	t.Cleanup(stop)
	output := bufio.NewScanner(stdout)
	if !output.Scan() || output.Text() != "attacking" {
		t.Fatalf("the attack did not start: %q, %v", output.Text(), output.Err())
	}
	return func() {
		_ = command.Process.Kill()
		if output.Scan() {
			t.Errorf("the attack failed: %s", output.Text())
		}
		stop()
	}
}

// awaitSessions waits until the server has no other sessions left.
func awaitSessions(t *testing.T, server *echoServer, want int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for server.count() != want {
		if time.Now().After(deadline) {
			t.Fatalf("the server has %d sessions, want %d", server.count(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

// honestClient exchanges messages and takes note of every difference.
type honestClient struct {
	connection comch.Connection
	lane       *lane
	next       uint64
}

func newHonestClient(t *testing.T, directory string) *honestClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := emulated.New(emulated.Options{Directory: directory}).Connect(ctx, comch.ClientConfig{Name: serverName})
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLane(ctx, connection)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Abort()
		_ = l.consumer.Close()
		_ = l.producer.Close()
	})
	return &honestClient{connection: connection, lane: l}
}

func (h *honestClient) leave(t *testing.T) {
	t.Helper()
	if err := errors.Join(h.lane.consumer.Close(), h.lane.producer.Close(), h.connection.Close()); err != nil {
		t.Error(err)
	}
}

// exchange sends numbered messages and waits for each to come back.
func (h *honestClient) exchange(t *testing.T, count int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	var message [bufferSize]byte
	for range count {
		h.next++
		binary.LittleEndian.PutUint64(message[:], h.next)
		for errors.Is(h.lane.producer.Send(message[:], nil), status.Again) && time.Now().Before(deadline) {
			runtime.Gosched()
		}
		h.lane.producer.Flush()
		if got := h.receive(t, deadline); got != h.next {
			t.Fatalf("message %d came back as %d", h.next, got)
		}
	}
}

func (h *honestClient) receive(t *testing.T, deadline time.Time) uint64 {
	t.Helper()
	consumer, received := h.lane.consumer, h.lane.received[:1]
	for consumer.Poll(received) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("no answer within %v; the connection's end is %v", patience, h.connection.Err())
		}
		runtime.Gosched()
	}
	value := binary.LittleEndian.Uint64(consumer.Memory()[received[0].Offset:])
	if err := consumer.PostReceive(received[0].Offset, bufferSize, 0); err != nil {
		t.Fatal(err)
	}
	consumer.Flush()
	return value
}

// shortDirectory is one that fits into a socket address, which the attacks
// use without further ado.
func shortDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "comch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return directory
}
