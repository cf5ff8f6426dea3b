package sample

import (
	"bytes"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// The messages that begin and end the data path test.
const (
	StartDataPath = "start_data_path_test"
	StopDataPath  = "stop_data_path_test"
)

const bufferSize = 1 << 20 // bytes of the one buffer of a consumer

// Produce makes a producer, sends one message and ends the producer; then it
// calls done.
func (s *Sample) Produce(connection *contexts.Connection, consumer comch.ConsumerID, text string, done func()) {
	producer, err := contexts.NewProducer(connection)
	if err != nil {
		s.Check(err)
		return
	}
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
	s.Check(producer.Start(s.Engine))
	task, err := producer.AllocateSend(consumer, []byte(text), nil)
	if err == nil {
		err = task.Submit()
	}
	s.Check(err)
}

// Consume makes a consumer, logs one message and ends the consumer; then it
// calls done.
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
			Log(bytes.Clone(task.Data()))
			end(task, nil)
		},
		Failed: end,
		StateChanged: func(_, state progress.State) {
			switch state {
			case progress.Running:
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
