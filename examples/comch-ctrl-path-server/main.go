// SPDX-License-Identifier: Apache-2.0

// Command comch-ctrl-path-server is the server of the control path sample of the DOCA Comch guide.
// It waits for one message from a client, sends a message back, and exits. Start it before its
// client, comch-ctrl-path-client.
//
// It shows the life cycle of a server context: create it, configure it with its callbacks and the
// size of its task pool, start it, and make progress until it is idle. Package sample reads the
// flags and makes the progress.
package main

import (
	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

func main() { sample.Main(emulated.DefaultDevice, start) }

// start returns a running server. Everything else happens in its callbacks, which run while the
// sample makes progress, on the same thread as start.
func start(s *sample.Sample) (sample.Context, error) {
	// A server listens under a name, on one device of the DPU, for clients on the host function
	// that the representor represents.
	server, err := contexts.NewServer(
		s.Provider, s.Device, s.Representor, "comch_ctrl_path_sample_server")
	if err != nil {
		return nil, err
	}
	err = server.Configure(contexts.ServerConfig{
		ControlConfig: contexts.ControlConfig{
			SendTasks:    sample.SendTasks,
			ReceiveQueue: sample.ReceiveQueue,
			// First, the client's message arrives. It is valid only during the call.
			MessageReceived: func(client *contexts.Connection, message []byte) {
				sample.Log(message)
				s.Send(server, client, s.Text)
			},
			// Then the client has room for our message, and the send task completes. A completed
			// task belongs to the application again, which frees it here. Stop disconnects the
			// client; the server is idle once the client has gone and all tasks are freed.
			SendCompleted: func(task *contexts.SendTask) {
				s.Check(task.Free())
				s.Check(server.Stop())
			},
			SendFailed: s.SendFailed,
		},
		// These callbacks are mandatory, but the sample has no use for them.
		Connected:    func(*contexts.Connection, bool) {},
		Disconnected: func(*contexts.Connection, bool) {},
	})
	if err != nil {
		return nil, err
	}
	return server, server.Start(s.Engine)
}
