// Command comch-data-path-high-speed-server is the server of the Comch data
// path sample: it takes a text with its consumer, and then sends one to the
// client's.
package main

import (
	"errors"

	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

func main() { sample.Main(emulated.DefaultDevice, start) }

func start(s *sample.Sample) (sample.Context, error) {
	server, err := contexts.NewServer(s.Provider, s.Device, s.Representor, "comch_data_path_sample_server")
	if err != nil {
		return nil, err
	}
	finished := false
	err = server.Configure(contexts.ServerConfig{
		ControlConfig: contexts.ControlConfig{
			SendTasks:    sample.SendTasks,
			ReceiveQueue: sample.ReceiveQueue,
			SendCompleted: func(task *contexts.SendTask) {
				s.Check(task.Free())
				if finished {
					s.Check(server.Stop())
				}
			},
			SendFailed: s.SendFailed,
			MessageReceived: func(client *contexts.Connection, message []byte) {
				finished = string(message) == sample.StopDataPath
				s.Send(server, client, string(message))
				if !finished {
					s.Consume(client, func() {})
				}
			},
			ConsumerCreated: func(client *contexts.Connection, id comch.ConsumerID) {
				s.Produce(client, id, s.Text, func() {})
			},
			ConsumerExpired: func(*contexts.Connection, comch.ConsumerID) {},
		},
		Connected: func(*contexts.Connection, bool) {},
		Disconnected: func(*contexts.Connection, bool) {
			if !finished {
				s.Check(errors.New("the client left before the test was over"))
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return server, server.Start(s.Engine)
}
