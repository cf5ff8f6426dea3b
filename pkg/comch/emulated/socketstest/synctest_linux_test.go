// SPDX-License-Identifier: Apache-2.0

package socketstest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// latency is how long a packet is in flight in the simulation.
const latency = time.Millisecond

// TestSimulationOfAServerAndAClient runs both sides in a bubble, whose clock advances only when
// everything waits.
func TestSimulationOfAServerAndAClient(t *testing.T) {
	before := countDescriptors(t)
	synctest.Test(t, func(t *testing.T) {
		network := NewNetwork(Options{InFlight: func(d *Delivery) {
			time.AfterFunc(latency, d.Deliver)
		}})
		host, dpu := network.NewProcess(comch.Peer{PID: 1, UID: self.UID}),
			network.NewProcess(comch.Peer{PID: 2, UID: self.UID})
		start := time.Now()
		server, err := emulated.New(emulated.Options{Sockets: dpu}).Listen(t.Context(),
			comch.ServerConfig{Name: storage.Name})
		if err != nil {
			t.Fatal(err)
		}
		client, err := emulated.New(emulated.Options{Sockets: host}).Connect(t.Context(),
			comch.ClientConfig{Name: storage.Name})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 2*latency {
			t.Errorf("connecting took %v, want the hello's and the welcome's %v each", took, latency)
		}
		accepted, err := server.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if accepted.Peer().PID != 1 || client.Peer().PID != 2 {
			t.Errorf("got peers %+v and %+v", accepted.Peer(), client.Peer())
		}
		exchangeMessages(t, client, accepted)
		exchangeRegions(t, client, accepted)
		closers := exchangeOnDataPath(t, client, accepted)

		if comch.HasEnded(accepted, time.Now()) {
			t.Error("the peer counts as gone before its death")
		}
		if err := client.Send(t.Context(), []byte("last words")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the message is in flight
		host.Kill()
		if !comch.HasEnded(accepted, time.Now()) {
			t.Error("the kernel does not tell that the peer has died")
		}
		synctest.Wait()
		if accepted.Err() != nil {
			t.Errorf("the end has arrived before its delivery: %v", accepted.Err())
		}
		start = time.Now()
		<-accepted.Done()
		if took := time.Since(start); took != latency {
			t.Errorf("the death was noticed after %v, want %v", took, latency)
		}
		if !errors.Is(accepted.Err(), status.ConnectionReset) {
			t.Errorf("got %v", accepted.Err())
		}
		for _, c := range append(closers, client, accepted, server) {
			if err := c.Close(); err != nil {
				t.Errorf("close %T: %v", c, err)
			}
		}
		time.Sleep(time.Minute) // the server keeps the rings of a dead client for a while
	})
	if after := countDescriptors(t); after > before {
		t.Errorf("%d descriptors after the simulation, %d before", after, before)
	}
}

func exchangeMessages(t *testing.T, client, server comch.Connection) {
	t.Helper()
	for from, to := range map[comch.Connection]comch.Connection{client: server, server: client} {
		start := time.Now()
		if err := from.Send(t.Context(), []byte("hello")); err != nil {
			t.Fatal(err)
		}
		message, err := to.Receive(t.Context())
		if err != nil || string(message) != "hello" || time.Since(start) != latency {
			t.Errorf("received %q after %v, error %v", message, time.Since(start), err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := client.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("received from a silent peer: %v", err)
	}
}

func exchangeRegions(t *testing.T, client, server comch.Connection) {
	t.Helper()
	region, err := memory.Alloc("simulation", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = region.Close() }()
	copy(region.Bytes(), "exported")
	token, err := client.ExportMemory(t.Context(), region, memory.PCIRead)
	if err != nil {
		t.Fatal(err)
	}
	imported, _, err := server.ImportMemory(token)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = imported.Close() }()
	content := make([]byte, 8)
	if err := imported.CopyOut(content, 0); err != nil || string(content) != "exported" {
		t.Errorf("imported memory holds %q, error %v", content, err)
	}
}

type closer interface{ Close() error }

// exchangeOnDataPath sends one message from the client to the server.
func exchangeOnDataPath(t *testing.T, client, server comch.Connection) []closer {
	t.Helper()
	consumer, err := server.NewConsumer(t.Context(),
		comch.ConsumerConfig{Receives: 4, MemorySize: 256})
	if err != nil {
		t.Fatal(err)
	}
	event, err := client.NextConsumerEvent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	producer, err := client.NewProducer(t.Context(), event.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.PostReceive(0, 64, 7); err != nil {
		t.Fatal(err)
	}
	consumer.Flush()
	if err := producer.Send([]byte("data"), nil); err != nil {
		t.Fatal(err)
	}
	var received [1]comch.Received
	if consumer.Poll(received[:]) != 1 || received[0].UserData != 7 ||
		string(consumer.Memory()[:4]) != "data" || producer.State() != progress.Running {
		t.Errorf("received %+v, memory %q", received[0], consumer.Memory()[:4])
	}
	return []closer{consumer, producer}
}
