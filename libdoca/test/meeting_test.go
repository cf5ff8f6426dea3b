// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A program on libdoca meets a server of the emulated Comch, as the relay has one.
func TestAProgramMeetsOurServer(t *testing.T) {
	t.Parallel()
	eachToolchain(t, func(t *testing.T, c *toolchain) {
		executable := c.compile(t, "meeting")
		for test, serve := range map[string]func(context.Context, *testing.T, comch.Server){
			"echo": echo, "whole_pages": importWhole, "parts_of_pages": importParts,
		} {
			t.Run(test, func(t *testing.T) {
				t.Parallel()
				meet(t, executable, test, serve)
			})
		}
	})
}

func meet(t *testing.T, executable, test string,
	serve func(context.Context, *testing.T, comch.Server)) {
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
	client := exec.CommandContext(ctx, executable, "host", test)
	client.Env = environment(t, "{role: host, directory: "+directory+"}")
	var output bytes.Buffer
	client.Stdout, client.Stderr = &output, &output
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { t.Logf("the program:\n%s", output.String()) }()
	serve(ctx, t, server)
	if err := client.Wait(); err != nil {
		t.Errorf("the program: %v", err)
	}
	checkMisuse(t, "the program", output.String())
}

func importWhole(ctx context.Context, t *testing.T, server comch.Server) {
	connection, descriptor := receiveExport(ctx, t, server)
	region, access, err := connection.ImportMemory(descriptor)
	if err != nil {
		t.Fatal(err)
	}
	if !access.Has(memory.PCIWrite|memory.RemoteWrite) || region.Len() != 5<<20 {
		t.Errorf("imported %d bytes with rights %#x", region.Len(), uint32(access))
	}
	content := make([]byte, region.Len())
	if err := region.CopyOut(content, 0); err != nil {
		t.Fatal(err)
	}
	for i, b := range content {
		if b != byte(i%251) {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	if err := region.CopyIn(4096, []byte("A")); err != nil {
		t.Fatal(err)
	}
	say(ctx, t, connection, "yes")
	hear(ctx, t, connection)
	if err := region.CopyOut(content[:1], 0); err != nil || content[0] != 'B' {
		t.Errorf("the program wrote B, and this side sees %q: %v", content[0], err)
	}
	say(ctx, t, connection, "seen")
	hear(ctx, t, connection) // the program has taken the memory away
	if err := region.CopyIn(0, []byte("C")); err != nil {
		t.Errorf("write too late: %v", err) // into a file that nobody else has
	}
	if err := region.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := connection.ImportMemory(descriptor); !errors.Is(err, status.NotFound) {
		t.Errorf("import after the end: %v", err)
	}
	say(ctx, t, connection, "late")
	<-connection.Done()
}

func importParts(ctx context.Context, t *testing.T, server comch.Server) {
	connection, descriptor := receiveExport(ctx, t, server)
	if _, _, err := connection.ImportMemory(descriptor); !errors.Is(err, status.NotSupported) {
		t.Errorf("parts of pages: %v", err)
	}
	forged := bytes.Clone(descriptor)
	forged[10]++ // of the ID
	if _, _, err := connection.ImportMemory(forged); !errors.Is(err, status.NotFound) {
		t.Errorf("another ID: %v", err)
	}
	forged = bytes.Clone(descriptor)
	forged[36]++ // of the length
	if _, _, err := connection.ImportMemory(forged); !errors.Is(err, status.InvalidValue) {
		t.Errorf("another length: %v", err)
	}
	say(ctx, t, connection, "no")
	hear(ctx, t, connection)
	say(ctx, t, connection, "seen")
	hear(ctx, t, connection)
	say(ctx, t, connection, "late")
	<-connection.Done()
}

func receiveExport(ctx context.Context, t *testing.T, server comch.Server) (comch.Connection,
	[]byte) {
	t.Helper()
	connection, err := server.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return connection, hear(ctx, t, connection)
}

func hear(ctx context.Context, t *testing.T, connection comch.Connection) []byte {
	t.Helper()
	message, err := connection.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return message
}

func say(ctx context.Context, t *testing.T, connection comch.Connection, text string) {
	t.Helper()
	if err := connection.Send(ctx, []byte(text)); err != nil {
		t.Fatal(err)
	}
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
