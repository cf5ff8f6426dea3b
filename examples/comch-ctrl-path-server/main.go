// Command comch-ctrl-path-server is the server of the Comch control path
// sample: it answers the first message with its own text and ends.
package main

import (
	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

func main() { sample.Main(emulated.DefaultDevice, start) }

func start(s *sample.Sample) (sample.Context, error) {
	server, err := contexts.NewServer(s.Provider, s.Device, s.Representor, "comch_ctrl_path_sample_server")
	if err != nil {
		return nil, err
	}
	err = server.Configure(contexts.ServerConfig{
		ControlConfig: contexts.ControlConfig{
			SendTasks:    sample.SendTasks,
			ReceiveQueue: sample.ReceiveQueue,
			SendCompleted: func(task *contexts.SendTask) {
				s.Check(task.Free())
				s.Check(server.Stop())
			},
			SendFailed: s.SendFailed,
			MessageReceived: func(client *contexts.Connection, message []byte) {
				sample.Log(message)
				s.Send(server, client, s.Text)
			},
		},
		Connected:    func(*contexts.Connection, bool) {},
		Disconnected: func(*contexts.Connection, bool) {},
	})
	if err != nil {
		return nil, err
	}
	return server, server.Start(s.Engine)
}
