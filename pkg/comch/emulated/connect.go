// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
)

func (p *provider) Connect(ctx context.Context, config comch.ClientConfig,
) (comch.Connection, error) {
	c, err := p.connect(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to Comch server %q of device %s: %w",
			config.Name, config.Device, err)
	}
	return c, nil
}

func (p *provider) connect(ctx context.Context, config comch.ClientConfig) (*connection, error) {
	setDefault(&config.Device, DefaultHostDevice)
	setDefault(&config.MaxMessageSize, p.limits.MaxMessageSize)
	setDefault(&config.ReceiveQueue, min(defaultReceiveQueue, p.limits.MaxReceiveQueue))
	config.Device = pci.Normalize(config.Device)
	if err := CheckName("server name", config.Name); err != nil {
		return nil, err
	}
	if err := p.resolveClient(&config); err != nil {
		return nil, err
	}
	own := greeting{config.MaxMessageSize, config.ReceiveQueue}
	if err := own.check(&p.limits); err != nil {
		return nil, err
	}
	server, err := p.sockets.Connect(ctx, config.Device, config.Name)
	if err != nil {
		return nil, err
	}
	s := newFrameSocket(server, config.MaxMessageSize)
	peer, err := server.Peer()
	if err != nil {
		s.close()
		return nil, err
	}
	agreed, err := greetServer(ctx, s, own)
	if err != nil {
		s.close()
		return nil, err
	}
	c := newConnection(clientRole, s, peer, agreed, p.limits, newPool(nil, unlimited),
		p.log)
	c.reachesImports = p.reachesImports
	c.start()
	return c, nil
}
