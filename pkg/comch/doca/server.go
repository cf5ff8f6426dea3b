// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// server implements comch.Server.
type server struct {
	endpoint *endpoint
	address  string
	accepted inbox[*connection]

	mu        sync.Mutex
	admission comch.Admission
	closeOnce sync.Once

	// Only the endpoint's thread uses the rest.

	clients int
	closed  bool
}

func checkAdmission(admission *comch.Admission, c comch.Capabilities) error {
	if len(admission.AllowUsers) > 0 {
		return status.Errorf(status.InvalidValue,
			"comch provider %s cannot tell users: leave out allowed users", providerName)
	}
	if c.MaxClients == 0 {
		return status.Errorf(status.Driver,
			"the device does not tell how many clients a server may have, so nobody could connect")
	}
	if admission.MaxClients < 0 || admission.MaxClients > c.MaxClients {
		return status.Errorf(status.InvalidValue, "%d clients: the device supports up to %d",
			admission.MaxClients, c.MaxClients)
	}
	if admission.MaxClients == 0 {
		admission.MaxClients = c.MaxClients
	}
	return nil
}

func (p *provider) listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := settings{device: config.Device, name: config.Name,
		maxMessageSize: config.MaxMessageSize, receiveQueue: config.ReceiveQueue}
	library, c, err := p.check(&s)
	if err == nil {
		err = checkAdmission(&config.Admission, c)
	}
	if err != nil {
		return nil, err
	}
	if !c.Server {
		return nil, status.Errorf(status.NotSupported,
			"the device cannot have servers: it is not on a DPU, or not a physical function")
	}
	device, err := library.OpenDevice(config.Device)
	if err != nil {
		return nil, err
	}
	representor, err := device.OpenRepresentor(config.Representor)
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	e, err := p.newEndpoint(library, s, c, device, representor)
	if err != nil {
		return nil, err
	}
	x := &server{endpoint: e, admission: config.Admission,
		address: fmt.Sprintf("doca:%s/%s/%s", config.Device, config.Representor, config.Name)}
	err = e.do(func() error {
		e.connected = x.connected
		return e.control.Start()
	})
	if err == nil {
		err = e.await(ctx, comch.CloseTimeout, func() bool {
			return e.control.State() != progress.Starting
		})
	}
	if err == nil && e.control.State() != progress.Running {
		err = status.Errorf(status.AlreadyExist, "the server does not start: is the name taken?")
	}
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// connected is called on the endpoint's thread for each new client.
func (x *server) connected(handle doca.Connection) *connection {
	x.mu.Lock()
	limit := x.admission.MaxClients
	x.mu.Unlock()
	c := newConnection(x.endpoint, handle)
	c.maxImports = func() uint64 {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.admission.MaxExportBytes
	}
	c.lost = func() { x.clients-- }
	x.clients++
	x.endpoint.users++
	if x.closed || x.clients > limit {
		c.reject(status.Errorf(status.Full, "the server has %d clients", limit))
		return c
	}
	if x.accepted.put(c) == 0 {
		c.reject(errClosed) // Close has begun
	}
	return c
}

func (x *server) Accept(ctx context.Context) (comch.Connection, error) {
	c, err := x.accepted.take(ctx)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (x *server) SetAdmission(admission comch.Admission) error {
	if err := checkAdmission(&admission, x.endpoint.capabilities); err != nil {
		return err
	}
	x.mu.Lock()
	x.admission = admission
	x.mu.Unlock()
	return nil
}

func (x *server) Address() string { return x.address }

var errClosed = status.Errorf(status.Shutdown, "the server was closed")

// Close waits for the end of the DOCA server unless connections are left: then the last of them to
// be closed does.
func (x *server) Close() error {
	var err error
	x.closeOnce.Do(func() {
		x.accepted.end(errClosed)
		_ = x.endpoint.do(func() error { // fails if the DOCA server has ended
			x.closed = true
			for _, c := range x.accepted.takeAll() {
				c.reject(errClosed)
			}
			x.endpoint.leave()
			return nil
		})
		err = x.endpoint.awaitEnd()
	})
	return err
}

func (p *provider) connect(ctx context.Context,
	config comch.ClientConfig) (comch.Connection, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := settings{device: config.Device, name: config.Name,
		maxMessageSize: config.MaxMessageSize, receiveQueue: config.ReceiveQueue}
	library, c, err := p.check(&s)
	if err != nil {
		return nil, err
	}
	if !c.Client {
		return nil, status.Errorf(status.NotSupported,
			"the device cannot have clients: it is not on a host")
	}
	device, err := library.OpenDevice(config.Device)
	if err != nil {
		return nil, err
	}
	e, err := p.newEndpoint(library, s, c, device, nil)
	if err != nil {
		return nil, err
	}
	var connection *connection
	var startErr error
	started := false
	err = e.await(ctx, 0, func() bool {
		if !started {
			started = true
			if startErr = e.control.Start(); startErr != nil {
				return true
			}
		}
		switch e.control.State() {
		case progress.Running:
			var handle doca.Connection
			if handle, startErr = e.control.Connection(); startErr == nil {
				connection = newConnection(e, handle)
				e.connections[handle] = connection
			}
			return true
		case progress.Idle:
			startErr = status.Errorf(status.NotFound, "no server has that name, or it has "+
				"rejected the client")
			return true
		}
		return false
	})
	if err = errors.Join(startErr, err); err != nil {
		_ = e.do(func() error { e.leave(); return nil })
		<-e.exited
		return nil, err
	}
	return connection, nil
}
