package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// lane is a queue's consumer and producer in one session.
type lane struct {
	session  *session
	consumer comch.Consumer
	producer comch.Producer
}

// newLane makes the consumer of a lane, with all of its receives posted.
func (s *session) newLane(ctx context.Context) (*lane, error) {
	receives := s.volume.info.Depth + spareReceives
	consumer, err := s.connection.NewConsumer(ctx, comch.ConsumerConfig{Receives: receives, MemorySize: receives * iomsg.Size})
	if err != nil {
		return nil, err
	}
	for i := range uint64(receives) {
		if err := consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			return nil, errors.Join(fmt.Errorf("post receive %d on the Comch consumer: %w", i, err), consumer.Close())
		}
	}
	consumer.Flush()
	return &lane{session: s, consumer: consumer}, nil
}

func (l *lane) close() error {
	err := l.consumer.Close()
	if l.producer != nil {
		err = errors.Join(err, l.producer.Close())
	}
	return err
}
