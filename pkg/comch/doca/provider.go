// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Limits that the device does not set.
const (
	maxMemorySize = 1 << 30 // bytes of message memory of a consumer
	// maxBufferLength bounds messages on the data path in bytes, because a producer has memory for
	// at least one.
	maxBufferLength = 1 << 20
	// maxSends bounds the messages in flight of a producer.
	maxSends = 512
	// producerMemory is the least message memory of a producer in bytes.
	producerMemory = 128 << 10
	// maxControlSends bounds the control messages in flight of a connection.
	maxControlSends = 16

	defaultReceiveQueue = 16
)

type provider struct {
	loader *doca.Loader
	wait   bool
	log    *zap.Logger
}

// New returns a provider. It opens no library until one of its methods is called.
func New(options Options) comch.Provider {
	p := &provider{loader: options.Loader, wait: !options.NeverWait, log: options.Logger}
	if p.loader == nil {
		p.loader = doca.System()
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	return p
}

func (p *provider) Name() string { return providerName }

// library returns libdoca with Comch.
func (p *provider) library() (*doca.Library, error) {
	library, err := p.loader.Library()
	if err == nil {
		err = library.NeedComch()
	}
	if err != nil {
		return nil, fmt.Errorf("comch provider %s: %w", providerName, err)
	}
	return library, nil
}

func (p *provider) Capabilities(device string) (comch.Capabilities, error) {
	library, err := p.library()
	if err != nil {
		return comch.Capabilities{}, err
	}
	c, err := library.ComchCapabilities(cmp.Or(device, DefaultDevice))
	if err != nil {
		err = fmt.Errorf("comch provider %s: %w", providerName, err)
		if errors.Is(err, status.NotFound) {
			err = &comch.NoDeviceError{Err: err}
		}
		return comch.Capabilities{}, err
	}
	if !c.Server && !c.Client {
		return comch.Capabilities{}, status.Errorf(status.NotSupported,
			"comch provider %s: device %s supports neither servers nor clients", providerName,
			device)
	}
	return p.capabilities(library, c), nil
}

func (p *provider) capabilities(library *doca.Library,
	c doca.ComchCapabilities) comch.Capabilities {
	return comch.Capabilities{
		Server: c.Server, Client: c.Client, Consumer: c.Consumer, Producer: c.Producer,
		MaxNameLength: c.MaxNameLength, MaxMessageSize: c.MaxMessageSize,
		MaxReceiveQueue: c.MaxReceiveQueue, MaxClients: c.MaxClients,
		MaxSendTasks:       min(c.MaxProducerSends, maxSends),
		MaxConsumers:       c.MaxConsumers,
		MaxReceives:        c.MaxReceives,
		MaxMemorySize:      maxMemorySize,
		MaxBufferLength:    min(c.MaxReceiveLength, c.MaxSendLength, maxBufferLength),
		MaxImmediateLength: min(c.MaxImmediateLength, comch.MaxImmediateLength),
		CanWait:            p.wait && library.CanWait(),
		ConsumerMemory:     true, OpaqueImports: true,
	}
}

// Devices implements comch.DeviceLister.
func (p *provider) Devices() ([]comch.Device, error) {
	library, err := p.library()
	if err != nil {
		return nil, err
	}
	found, err := library.Devices()
	if err != nil {
		return nil, fmt.Errorf("comch provider %s: %w", providerName, err)
	}
	devices := make([]comch.Device, 0, len(found))
	for _, d := range found {
		device := comch.Device{PCI: pci.Normalize(d.PCIAddress), RDMA: d.IBName,
			Net: d.InterfaceName}
		if c, err := library.ComchCapabilities(d.Name()); err == nil {
			device.CanServe, device.CanConnect = c.Server, c.Client
		}
		if device.CanServe {
			device.Representors = representors(library, d.Name())
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// representors returns what it can learn: a device may be in use by a program that keeps it.
func representors(library *doca.Library, name string) []comch.Representor {
	device, err := library.OpenDevice(name)
	if err != nil {
		return nil
	}
	defer device.Close()
	found, _ := device.Representors()
	var all []comch.Representor
	for _, r := range found {
		all = append(all, comch.Representor{PCI: pci.Normalize(r.PCIAddress), VUID: r.VUID})
	}
	return all
}

// settings are what servers and clients have in common.
type settings struct {
	device, name                 string
	maxMessageSize, receiveQueue int
}

// check fills in defaults, and checks the settings against what the device can do.
func (p *provider) check(s *settings) (*doca.Library, comch.Capabilities, error) {
	library, err := p.library()
	if err != nil {
		return nil, comch.Capabilities{}, err
	}
	c, err := p.Capabilities(s.device)
	if err != nil {
		return nil, c, err
	}
	s.maxMessageSize = cmp.Or(s.maxMessageSize, c.MaxMessageSize)
	s.receiveQueue = cmp.Or(s.receiveQueue, min(defaultReceiveQueue, c.MaxReceiveQueue))
	switch {
	case s.name == "" || s.name == "." || s.name == ".." || strings.ContainsAny(s.name, "/\x00") ||
		len(s.name) > c.MaxNameLength:
		err = status.Errorf(status.InvalidValue, "server name %q is not 1 to %d bytes without \"/\"",
			s.name, c.MaxNameLength)
	case s.maxMessageSize < 1 || s.maxMessageSize > c.MaxMessageSize:
		err = status.Errorf(status.InvalidValue,
			"control messages of %d bytes: device %s supports 1 to %d", s.maxMessageSize, s.device,
			c.MaxMessageSize)
	case s.receiveQueue < 1 || s.receiveQueue > c.MaxReceiveQueue:
		err = status.Errorf(status.InvalidValue,
			"receive queue of %d messages: device %s supports 1 to %d", s.receiveQueue, s.device,
			c.MaxReceiveQueue)
	}
	return library, c, err
}

func (p *provider) Listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	config.Device = cmp.Or(config.Device, DefaultDevice)
	config.Representor = cmp.Or(config.Representor, DefaultRepresentor)
	server, err := p.listen(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("listen as %q on device %s for %s: %w", config.Name, config.Device,
			config.Representor, err)
	}
	return server, nil
}

func (p *provider) Connect(ctx context.Context,
	config comch.ClientConfig) (comch.Connection, error) {
	config.Device = cmp.Or(config.Device, DefaultHostDevice)
	connection, err := p.connect(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to %q from device %s: %w", config.Name, config.Device, err)
	}
	return connection, nil
}
