// Command comch-ctrl-path-client is the client of the Comch control path
// sample: it sends a text when it is connected, and ends with the answer.
package main

import (
	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

func main() { sample.Main(emulated.DefaultHostDevice, start) }

func start(s *sample.Sample) (sample.Context, error) {
	client, err := contexts.NewClient(s.Provider, s.Device, "comch_ctrl_path_sample_server")
	if err != nil {
		return nil, err
	}
	err = client.Configure(contexts.ClientConfig{ControlConfig: contexts.ControlConfig{
		SendTasks:     sample.SendTasks,
		ReceiveQueue:  sample.ReceiveQueue,
		SendCompleted: func(task *contexts.SendTask) { s.Check(task.Free()) },
		SendFailed:    s.SendFailed,
		MessageReceived: func(_ *contexts.Connection, message []byte) {
			sample.Log(message)
			s.Check(client.Stop())
		},
		StateChanged: func(_, state progress.State) {
			if state == progress.Running {
				connection, err := client.Connection()
				s.Check(err)
				s.Send(client, connection, s.Text)
			}
		},
	}})
	if err != nil {
		return nil, err
	}
	return client, client.Start(s.Engine)
}
