// SPDX-License-Identifier: Apache-2.0

// Command comch-data-path-high-speed-server is the server of the data path sample of the DOCA Comch
// guide. It receives one message from the client and sends one to it, both on the fast path, and
// exits. Start it before its client, comch-data-path-high-speed-client.
//
// The fast path consists of consumers and producers, which are contexts on an established
// connection. A consumer offers buffers, and a producer of the peer fills them. Control messages on
// the connection start and stop the exchange:
//
//	client                                server
//	start_data_path_test  ------------->  create a consumer
//	learn of the consumer                 start_data_path_test
//	send a message        ===fast path=>  receive it
//	create a consumer                     learn of the consumer
//	receive the message   <==fast path==  send a message
//	stop_data_path_test   ------------->
//	stop                  <-------------  stop_data_path_test
//	                                      stop
package main

import (
	"errors"

	"github.com/zc-relay/zc-relay/examples/internal/sample"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

func main() { sample.Main(emulated.DefaultDevice, start) }

// start returns a running server. The rest happens in its callbacks.
func start(s *sample.Sample) (sample.Context, error) {
	server, err := contexts.NewServer(
		s.Provider, s.Device, s.Representor, "comch_data_path_sample_server")
	if err != nil {
		return nil, err
	}
	finished := false
	err = server.Configure(contexts.ServerConfig{
		ControlConfig: contexts.ControlConfig{
			SendTasks:    sample.SendTasks,
			ReceiveQueue: sample.ReceiveQueue,
			// The client starts and stops the test with control messages, and expects each message
			// back. At the start, the server creates its consumer.
			MessageReceived: func(client *contexts.Connection, message []byte) {
				finished = string(message) == sample.StopDataPath
				s.Send(server, client, string(message))
				if !finished {
					s.Consume(client, func() {})
				}
			},
			// The last control message has been sent: the server can stop.
			SendCompleted: func(task *contexts.SendTask) {
				s.Check(task.Free())
				if finished {
					s.Check(server.Stop())
				}
			},
			SendFailed: s.SendFailed,
			// The client has created its consumer: send to it. Both consumer callbacks are
			// mandatory for the fast path.
			ConsumerCreated: func(client *contexts.Connection, id comch.ConsumerID) {
				s.Produce(client, id, s.Text, func() {})
			},
			ConsumerExpired: func(*contexts.Connection, comch.ConsumerID) {},
		},
		Connected: func(*contexts.Connection, bool) {},
		Disconnected: func(*contexts.Connection, bool) {
			if !finished {
				s.Check(errors.New("the client disconnected before the end of the test"))
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return server, server.Start(s.Engine)
}
