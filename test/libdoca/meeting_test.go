//go:build cgo

package libdoca_test

import (
	"bytes"
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// A program on libdoca meets a server of the emulated Comch, as the relay has one.
func TestAProgramMeetsOurServer(t *testing.T) {
	c := toolchains[0]
	if _, err := exec.LookPath(c.compiler); err != nil {
		t.Skipf("%v: install %s", err, c.compiler)
	}
	executable := c.compile(t, "meeting")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	directory := t.TempDir()
	server, err := emulated.New(emulated.Options{Directory: directory}).Listen(ctx,
		comch.ServerConfig{Device: emulated.DefaultDevice,
			Representor: emulated.DefaultRepresentor, Name: "meeting"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client := exec.CommandContext(ctx, executable, "host", "echo")
	client.Env = environment(t, "{role: host, directory: "+directory+"}")
	var output bytes.Buffer
	client.Stdout, client.Stderr = &output, &output
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	echo(ctx, t, server)
	if err := client.Wait(); err != nil {
		t.Errorf("the program: %v\n%s", err, output.String())
	}
	checkMisuse(t, "the program", output.String())
}

// echo returns to the program what it sends: a control message, and then messages of the fast path.
func echo(ctx context.Context, t *testing.T, server comch.Server) {
	t.Helper()
	connection, err := server.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	message, err := connection.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := connection.Send(ctx, message); err != nil {
		t.Fatal(err)
	}
	event, err := connection.NextConsumerEvent(ctx)
	if err != nil || !event.Created {
		t.Fatal(event, err)
	}
	consumer, err := connection.NewConsumer(ctx, comch.ConsumerConfig{Receives: 4,
		MemorySize: 4096, ImmediateLength: 32})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	producer, err := connection.NewProducer(ctx, event.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	if err := consumer.PostReceive(0, 1024, 0); err != nil {
		t.Fatal(err)
	}
	consumer.Flush()
	received := make([]comch.Received, 1)
	for consumer.Poll(received) == 0 {
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
		time.Sleep(time.Millisecond)
	}
	r := received[0]
	data := consumer.Memory()[r.Offset:][:r.Length]
	for err = producer.Send(data, r.Immediate[:r.ImmediateLength]); err != nil; {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		err = producer.Send(data, r.Immediate[:r.ImmediateLength])
	}
	producer.Flush()
	<-connection.Done()
}
