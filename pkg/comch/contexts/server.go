// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxRejections bounds the number of rejected clients whose events wait for the engine. Only a
// flood of clients exceeds it; their events are dropped.
const maxRejections = 64

// ServerConfig configures a server.
type ServerConfig struct {
	ControlConfig

	// Connected is called for each client that requests a connection. If successful is false, the
	// provider has rejected the client, and Connection.Err returns the reason. In a flood of
	// rejected clients, some calls are omitted. Mandatory.
	Connected func(connection *Connection, successful bool)
	// Disconnected is called when a connection has ended. successful reports whether one side
	// closed it; otherwise it was lost. Mandatory.
	Disconnected func(connection *Connection, successful bool)

	// MaxClients, AllowAnyUser, and MaxExportBytes have the meaning that comch.ServerConfig gives
	// them.
	MaxClients     int
	AllowAnyUser   bool
	MaxExportBytes uint64
}

// Server is the context that accepts clients under a name.
type Server struct {
	control
	provider   comch.Provider
	place      comch.ServerConfig // device, representor, and name
	config     ServerConfig
	rejections atomic.Int32 // rejected clients whose events are queued

	listener comch.Server
	cancel   context.CancelFunc
}

// NewServer returns an idle server. It fails with status.NotSupported if the device does not
// support servers, and with status.InvalidValue if the name is empty or too long.
func NewServer(provider comch.Provider, device, representor, name string) (*Server, error) {
	s := &Server{
		provider: provider,
		place:    comch.ServerConfig{Device: device, Representor: representor, Name: name},
	}
	err := s.create("server", provider, device, name,
		func(c comch.Capabilities) bool { return c.Server })
	if err != nil {
		return nil, fmt.Errorf("create Comch server %q: %w", name, err)
	}
	s.ended = s.disconnected
	return s, nil
}

// Configure replaces the configuration of an idle server.
func (s *Server) Configure(config ServerConfig) error {
	err := errors.Join(s.checkConfig(&config.ControlConfig),
		checkCallbacks(s.kind,
			callback{"Connected", config.Connected != nil},
			callback{"Disconnected", config.Disconnected != nil}),
		checkOptional("MaxClients", config.MaxClients, s.capabilities.MaxClients))
	if err != nil {
		return err
	}
	s.config = config
	s.apply(config.ControlConfig)
	return nil
}

// Start starts to listen. The server is running when Start returns nil.
func (s *Server) Start(engine *progress.Engine) error {
	if err := s.prepareStart(engine); err != nil {
		return err
	}
	place := s.place
	place.MaxMessageSize, place.ReceiveQueue = s.config.MaxMessageSize, s.config.ReceiveQueue
	place.MaxClients, place.AllowAnyUser = s.config.MaxClients, s.config.AllowAnyUser
	place.MaxExportBytes = s.config.MaxExportBytes
	place.Refused = s.rejected
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := s.provider.Listen(ctx, place)
	if err != nil {
		cancel()
		return err
	}
	s.listener, s.cancel = listener, cancel
	s.inBackground(func() { s.acceptClients(ctx, listener) }, nil)
	s.enter(progress.Running)
	return nil
}

// Address returns the address that the server listens on, for logs. It is "" until the first Start.
func (s *Server) Address() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Address()
}

func (s *Server) acceptClients(ctx context.Context, listener comch.Server) {
	for {
		peer, err := listener.Accept(ctx)
		if err != nil {
			break
		}
		if !callOnEngine(s.engine, func() { s.connected(peer) }) {
			peer.Abort()
			break
		}
	}
	_ = listener.Close() // releases the name even if it fails
}

func (s *Server) connected(peer comch.Connection) {
	connection := s.addConnection(peer)
	if s.is(progress.Running) {
		connection.announced = true
		s.config.Connected(connection, true)
	} else {
		_ = s.markClosing(connection) // cannot fail: there are no consumers yet
		s.disconnect(connection)
	}
	go connection.receive()
}

// rejected reports a client that the provider has rejected. Any goroutine may call it.
func (s *Server) rejected(peer comch.Peer, reason error) {
	if s.rejections.Add(1) > maxRejections {
		s.rejections.Add(-1)
		return
	}
	s.engine.Do(func() {
		s.rejections.Add(-1)
		if s.is(progress.Running) {
			s.config.Connected(&Connection{control: &s.control, rejection: reason, process: peer},
				false)
		}
	})
}

func (s *Server) disconnected(connection *Connection) {
	if connection.announced {
		s.config.Disconnected(connection, errors.Is(connection.Err(), status.Shutdown))
	}
}

// Disconnect starts to close one connection. The server calls Disconnected when both sides have
// seen the end. Disconnect fails with status.InUse while the connection has consumers or producers
// that are not idle.
func (s *Server) Disconnect(connection *Connection) error {
	if err := s.allow(disconnect); err != nil {
		return err
	}
	switch {
	case connection == nil || connection.control != &s.control:
		return status.Errorf(status.InvalidValue,
			"disconnect: the connection does not belong to this server")
	case connection.peer == nil || connection.gone || connection.closing:
		return fmt.Errorf("disconnect: %w", connection.notConnected())
	}
	if err := s.markClosing(connection); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	s.disconnect(connection)
	return nil
}

// Stop disconnects all clients and releases the name. The server is stopping until all connections
// have ended and all tasks are freed. Stop fails with status.InUse while there are consumers or
// producers that are not idle.
func (s *Server) Stop() error {
	if err := s.allow(stop); err != nil {
		return err
	}
	if s.is(progress.Stopping) {
		return nil
	}
	connections := s.allConnections()
	if err := s.markClosing(connections...); err != nil {
		return fmt.Errorf("stop server: %w", err)
	}
	s.enter(progress.Stopping)
	s.cancel()
	for _, connection := range connections {
		s.disconnect(connection)
	}
	return nil
}
