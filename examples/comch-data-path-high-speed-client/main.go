// SPDX-License-Identifier: Apache-2.0

// Command comch-data-path-high-speed-client is the client of the data path sample of the DOCA Comch
// guide. It sends one message to the server and receives one, both on the fast path, and exits. The
// documentation of comch-data-path-high-speed-server shows the whole exchange.
package main

import (
	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

func main() { sample.Main(emulated.DefaultHostDevice, start) }

// start returns a client that is connecting. The rest happens in its callbacks.
func start(s *sample.Sample) (sample.Context, error) {
	client, err := contexts.NewClient(s.Provider, s.Device, "comch_data_path_sample_server")
	if err != nil {
		return nil, err
	}
	err = client.Configure(contexts.ClientConfig{ControlConfig: contexts.ControlConfig{
		SendTasks:    sample.SendTasks,
		ReceiveQueue: sample.ReceiveQueue,
		// Connected: ask the server to create its consumer.
		StateChanged: func(_, state progress.State) {
			if state == progress.Running {
				connection, err := client.Connection()
				s.Check(err)
				s.Send(client, connection, sample.StartDataPath)
			}
		},
		// The server has created its consumer: send to it, receive from the server, and then stop
		// the test. Both consumer callbacks are mandatory for the fast path.
		ConsumerCreated: func(server *contexts.Connection, id comch.ConsumerID) {
			s.Produce(server, id, s.Text, func() {
				s.Consume(server, func() { s.Send(client, server, sample.StopDataPath) })
			})
		},
		ConsumerExpired: func(*contexts.Connection, comch.ConsumerID) {},
		// The server has confirmed the stop: disconnect.
		MessageReceived: func(_ *contexts.Connection, message []byte) {
			if string(message) == sample.StopDataPath {
				s.Check(client.Stop())
			}
		},
		SendCompleted: func(task *contexts.SendTask) { s.Check(task.Free()) },
		SendFailed:    s.SendFailed,
	}})
	if err != nil {
		return nil, err
	}
	return client, client.Start(s.Engine)
}
