// SPDX-License-Identifier: Apache-2.0

package comch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A client on the host and a server on the DPU exchange a control message each way, and one message
// on the data path. Here both run in one process, on the emulated provider, which only needs a
// directory where they can meet.
func Example() {
	directory, err := os.MkdirTemp("", "comch-example")
	must(err)
	defer os.RemoveAll(directory)
	provider := emulated.New(emulated.Options{Directory: directory})
	exchange(provider, "03:00.0", "b1:00.0")
	// Output:
	// server received "hello"
	// client received "welcome"
	// server received "data" with "immediate"
}

// exchange takes the steps of both sides on any provider: device is the DPU's device, and function
// that of the host, which represents itself on the DPU.
func exchange(provider comch.Provider, device, function string) {
	ctx := context.Background()

	// The server listens under a name, and the client connects to that name.
	server, err := provider.Listen(ctx, comch.ServerConfig{Device: device, Representor: function,
		Name: "greeter"})
	must(err)
	client, err := provider.Connect(ctx, comch.ClientConfig{Device: function, Name: "greeter"})
	must(err)
	accepted, err := server.Accept(ctx)
	must(err)

	// The control path: messages arrive whole and in order.
	must(client.Send(ctx, []byte("hello")))
	message, err := accepted.Receive(ctx)
	must(err)
	fmt.Printf("server received %q\n", message)
	must(accepted.Send(ctx, []byte("welcome")))
	message, err = client.Receive(ctx)
	must(err)
	fmt.Printf("client received %q\n", message)

	// The data path: the server's consumer offers a buffer of 64 bytes.
	consumer, err := accepted.NewConsumer(ctx, comch.ConsumerConfig{Receives: 1, MemorySize: 64})
	must(err)
	must(consumer.PostReceive(0, 64, 0))
	consumer.Flush()

	// The client learns of the consumer and sends to it. Send returns status.Again while no receive
	// is posted.
	event, err := client.NextConsumerEvent(ctx)
	must(err)
	producer, err := client.NewProducer(ctx, event.ID)
	must(err)
	for err = status.Again; errors.Is(err, status.Again); {
		err = producer.Send([]byte("data"), []byte("immediate"))
	}
	must(err)
	producer.Flush()

	// The server polls. Its memory stays writable by the client, so a real program copies the
	// message before it looks at it.
	var received [1]comch.Received
	for consumer.Poll(received[:]) == 0 {
		progress.Yield()
	}
	r := received[0]
	fmt.Printf("server received %q with %q\n",
		consumer.Memory()[r.Offset:][:r.Length], r.Immediate[:r.ImmediateLength])

	// A connection can be closed once its side has no consumers and producers.
	must(errors.Join(producer.Close(), consumer.Close(), client.Close(), accepted.Close(),
		server.Close()))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
