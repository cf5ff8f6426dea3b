package emulated

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// Environment of a child process: this test binary, playing a peer that can
// be killed.
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

// startChild starts a peer and waits until it says that it is ready.
func startChild(t *testing.T, play, directory string) *child {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childRole+"="+play, childDirectory+"="+directory)
	command.Stderr = os.Stderr
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = command.Start()
	if errors.Is(err, unix.ENOEXEC) {
		t.Skip("this test binary runs in an emulator and cannot start itself")
	}
	if err != nil {
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
	t.Fatalf("the child ended before it said %q: %v", line, c.output.Err())
}

// kill ends the child as kill -9 does.
func (c *child) kill() {
	_ = c.command.Process.Kill()
	_ = c.command.Wait()
}

// runChild plays a peer until it is killed or its parent is gone.
func runChild(play string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	provider := New(Options{Directory: os.Getenv(childDirectory)})
	connection, err := meet(provider, strings.HasPrefix(play, "server"))
	if err != nil {
		return err
	}
	consumer, producer, err := openPath(connection)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if strings.HasSuffix(play, "busy") {
		return echoForever(consumer, producer)
	}
	select {}
}

func meet(provider comch.Provider, serve bool) (comch.Connection, error) {
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

// openPath makes a consumer with posted receives and a producer to the
// peer's first consumer.
func openPath(connection comch.Connection) (comch.Consumer, comch.Producer, error) {
	ctx := context.Background()
	consumer, err := connection.NewConsumer(ctx, comch.ConsumerConfig{Receives: childReceives, MemorySize: 64 * childReceives})
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

// echoForever answers every message with itself, as long as there is a peer.
func echoForever(consumer comch.Consumer, producer comch.Producer) error {
	for {
		if _, err := echo(consumer, producer, 0); err != nil {
			return err
		}
	}
}
