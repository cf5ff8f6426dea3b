// SPDX-License-Identifier: Apache-2.0

package contexts_test

import (
	"fmt"
	"log"
	"os"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// A client sends a message, and the server replies. Both are contexts of one progress engine: their
// callbacks run inside Progress, on the thread that calls it.
func Example() {
	directory, err := os.MkdirTemp("", "contexts-example")
	must(err)
	defer os.RemoveAll(directory)
	greet(emulated.New(emulated.Options{Directory: directory}), "03:00.0", "b1:00.0")
	// Output:
	// client is starting
	// client is running
	// server received "hello"
	// client received "welcome"
	// client is stopping
	// client is idle
}

// greet runs both sides on any provider: device is the DPU's device, and function that of the host.
func greet(provider comch.Provider, device, function string) {
	engine, err := progress.NewEngine(progress.Policy{})
	must(err)

	// The server replies to each message, and frees the task once the reply is sent.
	server, err := contexts.NewServer(provider, device, function, "greeter")
	must(err)
	must(server.Configure(contexts.ServerConfig{
		ControlConfig: contexts.ControlConfig{
			SendTasks: 8,
			MessageReceived: func(client *contexts.Connection, message []byte) {
				fmt.Printf("server received %q\n", message)
				task, err := server.AllocateSend(client, []byte("welcome"))
				must(err)
				must(task.Submit())
			},
			SendCompleted: func(task *contexts.SendTask) { must(task.Free()) },
			SendFailed:    func(_ *contexts.SendTask, err error) { log.Fatal(err) },
		},
		Connected:    func(*contexts.Connection, bool) {},
		Disconnected: func(*contexts.Connection, bool) {},
	}))

	// The client sends as soon as it is connected, and stops after the reply.
	client, err := contexts.NewClient(provider, function, "greeter")
	must(err)
	must(client.Configure(contexts.ClientConfig{ControlConfig: contexts.ControlConfig{
		SendTasks: 8,
		StateChanged: func(_, state progress.State) {
			fmt.Println("client is", state)
			if state == progress.Running {
				connection, err := client.Connection()
				must(err)
				task, err := client.AllocateSend(connection, []byte("hello"))
				must(err)
				must(task.Submit())
			}
		},
		MessageReceived: func(_ *contexts.Connection, message []byte) {
			fmt.Printf("client received %q\n", message)
			must(client.Stop())
		},
		SendCompleted: func(task *contexts.SendTask) { must(task.Free()) },
		SendFailed:    func(_ *contexts.SendTask, err error) { log.Fatal(err) },
	}}))

	// Make progress until the client is idle again, then stop the server.
	must(server.Start(engine))
	must(client.Start(engine))
	for client.State() != progress.Idle {
		engine.Idle(engine.Progress())
	}
	must(server.Stop())
	for server.State() != progress.Idle {
		engine.Idle(engine.Progress())
	}
	must(engine.Close())
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
