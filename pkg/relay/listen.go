package relay

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// listenPause is how long to wait before listening again on a device that has failed.
const listenPause = 5 * time.Second

// run accepts the channel's clients until ctx ends. Sessions continue, and so do the links to the
// targets: a target confirms there that a session has ended.
func (c *channel) run(ctx context.Context) {
	c.linking.Go(func() { c.targets.run(c.links) })
	defer close(c.unlisted)
	c.awaitName(ctx)
	for ctx.Err() == nil {
		err := c.serveClients(ctx)
		if closeErr := c.closeServer(); closeErr != nil {
			c.log.Warn("cannot close the Comch server", zap.Error(closeErr))
		}
		if err == nil {
			continue
		}
		c.log.Error("clients cannot connect", zap.Error(err), zap.Duration("next_in", listenPause))
		select {
		case <-ctx.Done():
		case <-time.After(listenPause):
		}
	}
}

// awaitName waits until no former channel holds the name. A reload that adds a removed channel
// again may follow so soon that the removed one is still closing its server.
func (c *channel) awaitName(ctx context.Context) {
	for _, former := range c.former {
		select {
		case <-former.unlisted:
		case <-ctx.Done():
			return
		}
	}
	c.former = nil
}

// serveClients listens, unless the channel already does, and accepts clients until ctx ends.
func (c *channel) serveClients(ctx context.Context) error {
	if c.address() == "" {
		if err := c.listen(ctx); err != nil {
			return err
		}
	}
	settings := c.settings.Load()
	c.log.Info("listening for clients", zap.String("comch", c.address()),
		zap.String("device", c.id.Device),
		zap.Stringers("targets", settings.Targets), zap.String("volume", settings.Volume))
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	for {
		connection, err := server.Accept(ctx)
		if ctx.Err() != nil {
			if connection != nil {
				connection.Abort()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept Comch clients: %w", err)
		}
		c.startSession(connection)
	}
}

func (c *channel) listen(ctx context.Context) error {
	device, err := c.relay.config.Comch.Capabilities(c.id.Device)
	if err != nil {
		return err
	}
	settings := c.settings.Load()
	c.mu.Lock()
	c.maxClients = device.MaxClients
	admission := c.admission(settings)
	c.mu.Unlock()
	if admission.MaxClients < settings.Limits.MaxSessions {
		c.log.Warn("the Comch device supports fewer clients than limits.sessions allows",
			zap.Int("supported", admission.MaxClients),
			zap.Int("limit", settings.Limits.MaxSessions))
	}
	server, err := c.relay.config.Comch.Listen(ctx, comch.ServerConfig{
		Device: c.id.Device, Representor: c.id.Representor, Name: c.id.Name, Admission: admission,
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = server
	if now := c.settings.Load(); now != settings {
		return server.SetAdmission(c.admission(now))
	}
	return nil
}

// admission returns what the channel's Comch server enforces. The caller holds c.mu.
func (c *channel) admission(settings *ChannelConfig) comch.Admission {
	admission := settings.admission()
	admission.MaxClients = min(admission.MaxClients, c.maxClients)
	return admission
}

func (c *channel) address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return ""
	}
	return c.server.Address()
}

func (c *channel) closeServer() error {
	c.mu.Lock()
	server := c.server
	c.server = nil
	c.mu.Unlock()
	if server == nil {
		return nil
	}
	return server.Close()
}
