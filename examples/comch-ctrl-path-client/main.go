// SPDX-License-Identifier: Apache-2.0

// Command comch-ctrl-path-client is the client of the control path sample of the DOCA Comch guide.
// It connects to comch-ctrl-path-server, sends one message, waits for the server's message, and
// exits.
package main

import (
	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

func main() { sample.Main(emulated.DefaultHostDevice, start) }

// start returns a client that is connecting. The rest happens in its callbacks.
func start(s *sample.Sample) (sample.Context, error) {
	// A client connects to one server, which it finds by its name.
	client, err := contexts.NewClient(s.Provider, s.Device, "comch_ctrl_path_sample_server")
	if err != nil {
		return nil, err
	}
	err = client.Configure(contexts.ClientConfig{ControlConfig: contexts.ControlConfig{
		SendTasks:    sample.SendTasks,
		ReceiveQueue: sample.ReceiveQueue,
		// Start only starts to connect. The client is running once it is connected. If there is no
		// such server, it becomes idle instead, and Err returns the reason.
		StateChanged: func(_, state progress.State) {
			if state == progress.Running {
				connection, err := client.Connection()
				s.Check(err)
				s.Send(client, connection, s.Text)
			}
		},
		// Our message has been sent: return the task to the pool.
		SendCompleted: func(task *contexts.SendTask) { s.Check(task.Free()) },
		SendFailed:    s.SendFailed,
		// The server's message ends the sample. Stop disconnects; the sample makes progress until
		// the client is idle.
		MessageReceived: func(_ *contexts.Connection, message []byte) {
			sample.Log(message)
			s.Check(client.Stop())
		},
	}})
	if err != nil {
		return nil, err
	}
	return client, client.Start(s.Engine)
}
