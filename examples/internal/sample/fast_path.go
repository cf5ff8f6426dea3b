// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"bytes"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// The control messages that start and stop the test of the data path sample.
const (
	StartDataPath = "start_data_path_test"
	StopDataPath  = "stop_data_path_test"
)

// bufferSize is the size in bytes of a consumer's only buffer.
const bufferSize = 1 << 20

// Produce creates a producer, sends one message to a consumer of the peer, stops the producer, and
// calls done once the producer is idle.
func (s *Sample) Produce(
	connection *contexts.Connection, consumer comch.ConsumerID, text string, done func(),
) {
	producer, err := contexts.NewProducer(connection)
	if err != nil {
		s.Check(err)
		return
	}
	// end handles the completion of the only task. A stopping context is idle once all its tasks
	// are freed.
	end := func(task *contexts.ProducerSendTask, err error) {
		s.Check(err)
		s.Check(task.Free())
		if producer.State() == progress.Running {
			s.Check(producer.Stop())
		}
	}
	s.Check(producer.Configure(contexts.ProducerConfig{
		SendTasks: SendTasks,
		Sent:      func(task *contexts.ProducerSendTask) { end(task, nil) },
		Failed:    end,
		StateChanged: func(_, state progress.State) {
			if state == progress.Idle {
				done()
			}
		},
	}))
	// A producer is running once Start has returned. The message waits until the consumer has
	// posted a receive.
	s.Check(producer.Start(s.Engine))
	task, err := producer.AllocateSend(consumer, []byte(text), nil)
	if err == nil {
		err = task.Submit()
	}
	s.Check(err)
}

// Consume creates a consumer, logs the first message that it receives, stops the consumer, and
// calls done once the consumer is idle.
func (s *Sample) Consume(connection *contexts.Connection, done func()) {
	consumer, err := contexts.NewConsumer(connection, bufferSize)
	if err != nil {
		s.Check(err)
		return
	}
	end := func(task *contexts.ReceiveTask, err error) {
		s.Check(err)
		s.Check(task.Free())
		if consumer.State() == progress.Running {
			s.Check(consumer.Stop())
		}
	}
	s.Check(consumer.Configure(contexts.ConsumerConfig{
		ReceiveTasks: 1,
		Received: func(task *contexts.ReceiveTask) {
			// The peer can still change the data: copy it, and use only the copy.
			Log(bytes.Clone(task.Data()))
			end(task, nil)
		},
		Failed: end,
		StateChanged: func(_, state progress.State) {
			switch state {
			case progress.Running:
				// The consumer is registered with the peer. Offer the whole memory as one buffer.
				task, err := consumer.AllocateReceive(0, bufferSize)
				if err == nil {
					err = task.Submit()
				}
				s.Check(err)
			case progress.Idle:
				s.Check(consumer.Err())
				done()
			}
		},
	}))
	s.Check(consumer.Start(s.Engine))
}
