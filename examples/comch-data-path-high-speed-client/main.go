// Command comch-data-path-high-speed-client is the client of the Comch data
// path sample: it sends a text to the server's consumer, and then takes one
// with a consumer of its own.
package main

import (
	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

func main() { sample.Main(emulated.DefaultHostDevice, start) }

func start(s *sample.Sample) (sample.Context, error) {
	client, err := contexts.NewClient(s.Provider, s.Device, "comch_data_path_sample_server")
	if err != nil {
		return nil, err
	}
	err = client.Configure(contexts.ClientConfig{ControlConfig: contexts.ControlConfig{
		SendTasks:     sample.SendTasks,
		ReceiveQueue:  sample.ReceiveQueue,
		SendCompleted: func(task *contexts.SendTask) { s.Check(task.Free()) },
		SendFailed:    s.SendFailed,
		StateChanged: func(_, state progress.State) {
			if state == progress.Running {
				connection, err := client.Connection()
				s.Check(err)
				s.Send(client, connection, sample.StartDataPath)
			}
		},
		ConsumerCreated: func(server *contexts.Connection, id comch.ConsumerID) {
			s.Produce(server, id, s.Text, func() {
				s.Consume(server, func() { s.Send(client, server, sample.StopDataPath) })
			})
		},
		ConsumerExpired: func(*contexts.Connection, comch.ConsumerID) {},
		MessageReceived: func(_ *contexts.Connection, message []byte) {
			if string(message) == sample.StopDataPath {
				s.Check(client.Stop())
			}
		},
	}})
	if err != nil {
		return nil, err
	}
	return client, client.Start(s.Engine)
}
