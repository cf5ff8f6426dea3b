// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
)

func (p *provider) Listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	s, err := p.listen(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("listen as Comch server %q: %w", config.Name, err)
	}
	return s, nil
}

func (p *provider) listen(ctx context.Context, config comch.ServerConfig) (*server, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.prepareServer(&config); err != nil {
		return nil, err
	}
	service := comch.Service{Device: config.Device, Representor: config.Representor,
		Name: config.Name}
	listener, err := p.sockets.Listen(ctx, service, config.AllowsOthers())
	if err != nil {
		return nil, err
	}
	return newServer(p, config, listener), nil
}

// CheckServer implements comch.ServerChecker.
func (p *provider) CheckServer(config comch.ServerConfig) error {
	if err := p.prepareServer(&config); err != nil {
		return err
	}
	if u, ok := p.sockets.(unixSockets); ok {
		return u.check(comch.Service{Device: config.Device, Representor: config.Representor,
			Name: config.Name}, config.AllowsOthers())
	}
	return nil
}

// prepareServer sets defaults and rejects invalid values.
func (p *provider) prepareServer(config *comch.ServerConfig) error {
	setDefault(&config.Device, DefaultDevice)
	setDefault(&config.Representor, DefaultRepresentor)
	setDefault(&config.MaxMessageSize, p.limits.MaxMessageSize)
	setDefault(&config.ReceiveQueue, min(defaultReceiveQueue, p.limits.MaxReceiveQueue))
	if err := p.prepareAdmission(&config.Admission); err != nil {
		return err
	}
	config.Device = pci.Normalize(config.Device)
	config.Representor = pci.Normalize(config.Representor)
	if err := CheckName("representor", config.Representor); err != nil {
		return err
	}
	if err := CheckName("server name", config.Name); err != nil {
		return err
	}
	if err := p.resolveServer(config); err != nil {
		return err
	}
	return greeting{config.MaxMessageSize, config.ReceiveQueue}.check(&p.limits)
}
