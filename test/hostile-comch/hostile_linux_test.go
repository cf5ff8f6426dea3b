// SPDX-License-Identifier: Apache-2.0

// Package hostilecomch attacks a Comch server from other processes, and checks that the server and
// its honest clients are not affected.
package hostilecomch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
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

// echoes is how many messages an honest client exchanges in each phase of an attack.
const echoes = 200

func TestHostileClientHarmsOnlyItself(t *testing.T) {
	startNetpoller(t)
	before := measure(t)
	for _, name := range slices.Sorted(maps.Keys(attacks)) { // each meets what the last one left
		t.Run(name, func(t *testing.T) {
			former := measure(t) // what the server of the attack before this one still holds, too
			directory := shortDirectory(t)
			server := startServer(t, directory)
			honest := newHonestClient(t, directory)
			honest.exchange(t, echoes)
			stop := startAttack(t, name, directory)
			honest.exchange(t, echoes)
			start := time.Now()
			exchangeAsNewcomer(t, directory)
			used := measure(t)
			t.Logf("a newcomer was served within %v; the server uses %+v", time.Since(start), used)
			if used.descriptors > former.descriptors+maxDescriptors ||
				used.shared > former.shared+maxShared {
				t.Errorf("the server uses %+v, want at most %d descriptors and %d KiB more than %+v",
					used, maxDescriptors, maxShared, former)
			}
			honest.exchange(t, echoes)
			stop()
			awaitSessions(t, server, 1)
			honest.exchange(t, echoes)
		})
	}
	awaitResources(t, before)
}

// maxDescriptors and maxShared bound what the server holds for the clients of an attack.
const (
	maxDescriptors = 10_000
	maxShared      = 192 << 10 // KiB
)

// resources is what this process, which runs the server, uses.
type resources struct {
	descriptors, goroutines int
	rings                   int // mapped
	shared                  int // memory, in KiB
}

// startNetpoller makes the runtime open the descriptors that it keeps.
func startNetpoller(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
}

func measure(t *testing.T) resources {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	state, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	used := resources{descriptors: len(descriptors), goroutines: runtime.NumGoroutine(),
		rings: bytes.Count(maps, []byte("/memfd:"))}
	_, shared, _ := bytes.Cut(state, []byte("RssShmem:"))
	if _, err := fmt.Sscan(string(shared), &used.shared); err != nil {
		t.Fatal(err)
	}
	return used
}

// awaitResources waits until this process uses no more than before.
func awaitResources(t *testing.T, before resources) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("the server uses no more than %+v, as before", before),
		func() bool {
			now := measure(t)
			return now.descriptors <= before.descriptors && now.goroutines <= before.goroutines &&
				now.rings <= before.rings
		})
}

// exchangeAsNewcomer connects and exchanges messages during the attack.
func exchangeAsNewcomer(t *testing.T, directory string) {
	t.Helper()
	newcomer := newHonestClient(t, directory)
	newcomer.exchange(t, echoes)
	newcomer.close(t)
}

// startAttack starts a hostile process and returns a function that kills it.
func startAttack(t *testing.T, name, directory string) func() {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), attackVariable+"="+name, directoryVariable+"="+directory,
		fmt.Sprintf("%s=%d", seedtest.Variable, seedtest.Of(t)))
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
		t.Fatalf("the attack did not start: it printed %q, error %v", output.Text(), output.Err())
	}
	return func() {
		_ = command.Process.Kill()
		if output.Scan() {
			t.Errorf("the attack failed: %s", output.Text())
		}
		stop()
	}
}

// awaitSessions waits until the server has the given number of sessions.
func awaitSessions(t *testing.T, server *echoServer, want int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("the server has %d sessions", want),
		func() bool { return server.count() == want })
}

// honestClient exchanges messages and fails the test on any difference.
type honestClient struct {
	connection comch.Connection
	path       *dataPath
	next       uint64
}

func newHonestClient(t *testing.T, directory string) *honestClient {
	t.Helper()
	ctx := testkit.Context(t)
	connection, err := emulated.New(emulated.Options{Directory: directory}).Connect(ctx,
		comch.ClientConfig{Name: serverName})
	if err != nil {
		t.Fatal(err)
	}
	path, err := newDataPath(ctx, connection)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Abort()
		_ = path.consumer.Close()
		_ = path.producer.Close()
	})
	return &honestClient{connection: connection, path: path}
}

func (h *honestClient) close(t *testing.T) {
	t.Helper()
	if err := errors.Join(h.path.consumer.Close(), h.path.producer.Close(),
		h.connection.Close()); err != nil {
		t.Error(err)
	}
}

// exchange sends numbered messages and waits for the echo of each.
func (h *honestClient) exchange(t *testing.T, count int) {
	t.Helper()
	var message [bufferSize]byte
	for range count {
		h.next++
		binary.LittleEndian.PutUint64(message[:], h.next)
		testkit.Eventually(t, "the server has room", func() bool {
			return !errors.Is(h.path.producer.Send(message[:], nil), status.Again)
		})
		h.path.producer.Flush()
		if got := h.receive(t); got != h.next {
			t.Fatalf("the echo of message %d is %d", h.next, got)
		}
	}
}

func (h *honestClient) receive(t *testing.T) uint64 {
	t.Helper()
	consumer, received := h.path.consumer, h.path.received[:1]
	testkit.Eventually(t, "an echo arrives", func() bool {
		if consumer.Poll(received) > 0 {
			return true
		}
		if err := h.connection.Err(); err != nil {
			t.Fatalf("the connection has ended: %v", err)
		}
		return false
	})
	value := binary.LittleEndian.Uint64(consumer.Memory()[received[0].Offset:])
	if err := consumer.PostReceive(received[0].Offset, bufferSize, 0); err != nil {
		t.Fatal(err)
	}
	consumer.Flush()
	return value
}

// shortDirectory returns a directory whose path fits into a socket address, because the attacks use
// it as such.
func shortDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "comch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return directory
}
