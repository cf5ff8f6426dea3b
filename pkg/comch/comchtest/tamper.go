// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"context"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// Tamper returns a provider whose clients send what change makes of their messages on the fast
// path. Tests of servers use it to send what a client of ours would not.
func Tamper(provider comch.Provider, change func(message []byte)) comch.Provider {
	return tamperingProvider{provider, change}
}

type tamperingProvider struct {
	comch.Provider
	change func([]byte)
}

type tamperingConnection struct {
	comch.Connection
	change func([]byte)
}

type tamperingProducer struct {
	comch.Producer
	change func([]byte)
}

type tamperingLateProducer struct {
	comch.LateProducer
	change func([]byte)
}

func (t tamperingProvider) Connect(ctx context.Context, config comch.ClientConfig,
) (comch.Connection, error) {
	connection, err := t.Provider.Connect(ctx, config)
	if err != nil {
		return nil, err
	}
	return tamperingConnection{connection, t.change}, nil
}

func (t tamperingConnection) NewProducer(ctx context.Context, id comch.ConsumerID,
) (comch.Producer, error) {
	producer, err := t.Connection.NewProducer(ctx, id)
	if err != nil {
		return nil, err
	}
	if late, ok := producer.(comch.LateProducer); ok {
		return tamperingLateProducer{late, t.change}, nil
	}
	return tamperingProducer{producer, t.change}, nil
}

func (t tamperingProducer) Send(message, immediate []byte) error {
	return sendChanged(t.Producer, t.change, message, immediate)
}

func (t tamperingLateProducer) Send(message, immediate []byte) error {
	return sendChanged(t.LateProducer, t.change, message, immediate)
}

func sendChanged(p comch.Producer, change func([]byte), message, immediate []byte) error {
	message = slices.Clone(message)
	change(message)
	return p.Send(message, immediate)
}
