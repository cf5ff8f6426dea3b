// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// prepared implements rdma.PreparedConnection.
type prepared struct {
	connection *connection
	details    []byte
}

// Prepare makes one end of a connection.
func (d *device) Prepare(config rdma.ConnectionConfig) (rdma.PreparedConnection, error) {
	c, err := newConnection(d, &config)
	if err != nil {
		return nil, fmt.Errorf("prepare doca connection: %w", err)
	}
	details, err := c.rdma.Export()
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	c.Agreed.Transport = ProviderName
	c.Agreed.InboundReads = config.InboundReads
	return &prepared{c, details}, nil
}

func (p *prepared) Details() []byte { return p.details }

func (p *prepared) Connect(details []byte) (rdma.Connection, error) {
	c := p.connection
	err := c.device.withGID(c.rdma.Connect(details))
	if err == nil {
		err = c.Attach()
	}
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

func (p *prepared) Discard() error { return p.connection.discard() }
