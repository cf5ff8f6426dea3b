// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// startTimeout bounds the time in the state Starting, in which the application can only make
// progress.
const startTimeout = 15 * time.Second

// ClientConfig configures a client.
type ClientConfig struct {
	ControlConfig
}

// Client is the context that connects to one server.
type Client struct {
	control
	provider   comch.Provider
	place      comch.ClientConfig // device and name
	connection *Connection
}

// NewClient returns an idle client of the server that listens under name. It fails with
// status.NotSupported if the device does not support clients, and with status.InvalidValue if the
// name is empty or too long.
func NewClient(provider comch.Provider, device, name string) (*Client, error) {
	c := &Client{provider: provider, place: comch.ClientConfig{Device: device, Name: name}}
	err := c.create("client", provider, device, name,
		func(c comch.Capabilities) bool { return c.Client })
	if err != nil {
		return nil, fmt.Errorf("create Comch client of server %q: %w", name, err)
	}
	c.ended = c.disconnected
	return c, nil
}

// Configure replaces the configuration of an idle client.
func (c *Client) Configure(config ClientConfig) error {
	if err := c.checkConfig(&config.ControlConfig); err != nil {
		return err
	}
	c.apply(config.ControlConfig)
	return nil
}

// Start starts to connect. The client is starting until progress makes it running. If the client
// cannot connect, progress makes it idle again, and Err returns the reason.
func (c *Client) Start(engine *progress.Engine) error {
	if err := c.prepareStart(engine); err != nil {
		return err
	}
	c.connection = nil
	place := c.place
	place.MaxMessageSize, place.ReceiveQueue = c.config.MaxMessageSize, c.config.ReceiveQueue
	c.enter(progress.Starting)
	var peer comch.Connection
	var err error
	c.inBackground(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		peer, err = c.provider.Connect(ctx, place)
	}, func() { c.connected(peer, err) })
	return nil
}

func (c *Client) connected(peer comch.Connection, err error) {
	if err != nil {
		c.reason = err
		c.enter(progress.Idle)
		return
	}
	c.connection = c.addConnection(peer)
	c.enter(progress.Running)
	go c.connection.receive()
}

// Connection returns the connection to the server. It fails with status.BadState if the client has
// not been running since its last start.
func (c *Client) Connection() (*Connection, error) {
	if c.connection == nil {
		return nil, status.Errorf(status.BadState,
			"get connection of client: it is %v and has not been running since its last start",
			c.State())
	}
	return c.connection, nil
}

// disconnected stops a running client whose connection has ended.
func (c *Client) disconnected(connection *Connection) {
	if c.is(progress.Running) {
		c.reason = connection.Err()
		c.enter(progress.Stopping)
	}
}

// Stop disconnects. The client is stopping until the connection has ended and all tasks are freed.
// Stop fails with status.InUse while there are consumers or producers that are not idle.
func (c *Client) Stop() error {
	if err := c.allow(stop); err != nil {
		return err
	}
	if c.is(progress.Stopping) {
		return nil
	}
	if err := c.markClosing(c.connection); err != nil {
		return fmt.Errorf("stop client: %w", err)
	}
	c.enter(progress.Stopping)
	c.disconnect(c.connection)
	return nil
}
