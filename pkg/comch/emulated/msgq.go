// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"fmt"
	"os"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/internal/msgq"
)

// NewDPA returns a DPA that runs on a thread of this process.
func (p *provider) NewDPA(config comch.DPAConfig) (comch.DPA, error) {
	setDefault(&config.Device, DefaultDevice)
	if _, _, err := p.device(pci.Normalize(config.Device)); err != nil {
		return nil, fmt.Errorf("create DPA: %w", err)
	}
	dpa, err := msgq.NewDPA(config.CPUs)
	if err != nil {
		return nil, fmt.Errorf("create DPA: %w", err)
	}
	return dpa, nil
}

// NewMsgQ returns a message queue that runs over a connection of this process to itself.
func (p *provider) NewMsgQ(config comch.MsgQConfig) (comch.MsgQ, error) {
	limits := p.limits
	setDefault(&config.MaxConsumers, limits.MaxConsumers)
	setDefault(&config.MaxProducers, limits.MaxProducers)
	err := errors.Join(
		checkCount("MaxConsumers", config.MaxConsumers, limits.MaxConsumers),
		checkCount("MaxProducers", config.MaxProducers, limits.MaxProducers))
	if err != nil {
		return nil, fmt.Errorf("create message queue %v: %w", config.Direction, err)
	}
	limits.MaxConsumers, limits.MaxProducers = config.MaxConsumers, config.MaxProducers
	connect := func() (cpuSide, dpaSide comch.Connection, err error) {
		return p.newLoopback(limits)
	}
	queue, err := msgq.New(config, limits.capabilities(), connect)
	if err != nil {
		return nil, fmt.Errorf("create message queue %v: %w", config.Direction, err)
	}
	return queue, nil
}

// newLoopback connects this process to itself and returns both ends.
func (p *provider) newLoopback(limits Limits) (client, server comch.Connection, err error) {
	first, second, err := p.sockets.Pair()
	if err != nil {
		return nil, nil, err
	}
	agreed := terms{maxMessageSize: limits.MaxMessageSize, receiveQueue: 1, peerReceiveQueue: 1}
	self := comch.Peer{Known: true, PID: os.Getpid(), UID: uint32(os.Geteuid()),
		GID: uint32(os.Getegid())}
	connect := func(role role, socket Socket) *connection {
		s := newFrameSocket(socket, limits.MaxMessageSize)
		c := newConnection(role, s, self, agreed, limits, newPool(nil, unlimited), p.log)
		c.start()
		return c
	}
	return connect(clientRole, first), connect(serverRole, second), nil
}
