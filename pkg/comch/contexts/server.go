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

// maxRefusals bounds the refused clients that wait to be told of. More of
// them, which only a flood of clients brings about, are left out.
const maxRefusals = 64

// ServerConfig configures a server.
type ServerConfig struct {
	ControlConfig

	// Connected is told of each client, and whether it is connected: of one
	// that was refused, Connection.Err has the reason. Disconnected is told of
	// the end of a connection, and whether it ended in order. Mandatory.
	Connected    func(connection *Connection, successful bool)
	Disconnected func(connection *Connection, successful bool)

	// MaxClients, AllowAnyUser and MaxExportBytes are as in
	// comch.ServerConfig.
	MaxClients     int
	AllowAnyUser   bool
	MaxExportBytes uint64
}

// Server is the context that listens for clients.
type Server struct {
	control
	provider comch.Provider
	place    comch.ServerConfig // device, representor and name
	config   ServerConfig
	refusals atomic.Int32

	listener comch.Server
	cancel   context.CancelFunc
}

// NewServer creates an idle server. status.NotSupported if the device cannot
// be a server, status.InvalidValue if the name cannot be used.
func NewServer(provider comch.Provider, device, representor, name string) (*Server, error) {
	s := &Server{provider: provider, place: comch.ServerConfig{Device: device, Representor: representor, Name: name}}
	if err := s.create("server", provider, device, name, func(c comch.Capabilities) bool { return c.Server }); err != nil {
		return nil, fmt.Errorf("create Comch server %q: %w", name, err)
	}
	s.ended = s.disconnected
	return s, nil
}

// Configure sets everything anew. Only an idle server can be configured.
func (s *Server) Configure(config ServerConfig) error {
	err := errors.Join(s.configure(&config.ControlConfig),
		checkCallbacks(s.kind, callback{"Connected", config.Connected != nil}, callback{"Disconnected", config.Disconnected != nil}),
		checkOptional("MaxClients", config.MaxClients, s.capabilities.MaxClients))
	if err != nil {
		return err
	}
	s.config = config
	s.apply(config.ControlConfig)
	return nil
}

// Start listens. The server is running when Start returns nil.
func (s *Server) Start(engine *progress.Engine) error {
	if err := s.prepareStart(engine); err != nil {
		return err
	}
	place := s.place
	place.MaxMessageSize, place.ReceiveQueue = s.config.MaxMessageSize, s.config.ReceiveQueue
	place.MaxClients, place.AllowAnyUser, place.MaxExportBytes = s.config.MaxClients, s.config.AllowAnyUser, s.config.MaxExportBytes
	place.Refused = s.refused
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

// Address says where the server listens, "" if it has never been started.
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
	_ = listener.Close() // the name is free and nobody listens, whatever it says
}

func (s *Server) connected(peer comch.Connection) {
	connection := s.addConnection(peer)
	if s.is(progress.Running) {
		connection.announced = true
		s.config.Connected(connection, true)
	} else {
		_ = s.markClosing(connection) // it has no consumers yet
		s.disconnect(connection)
	}
	go connection.receive()
}

// refused tells the application of a client that never got a connection.
func (s *Server) refused(peer comch.Peer, reason error) {
	if s.refusals.Add(1) > maxRefusals {
		s.refusals.Add(-1)
		return
	}
	s.engine.Do(func() {
		s.refusals.Add(-1)
		if s.is(progress.Running) {
			s.config.Connected(&Connection{control: &s.control, refusal: reason, process: peer}, false)
		}
	})
}

func (s *Server) disconnected(connection *Connection) {
	if connection.announced {
		s.config.Disconnected(connection, errors.Is(connection.Err(), status.Shutdown))
	}
}

// Disconnect ends one connection: the Disconnected callback tells when it has
// ended, on both sides. It fails with status.InUse while the connection has
// consumers or producers that are not idle.
func (s *Server) Disconnect(connection *Connection) error {
	if err := s.allow(disconnect); err != nil {
		return err
	}
	switch {
	case connection == nil || connection.control != &s.control:
		return status.Errorf(status.InvalidValue, "disconnect: the connection is not one of this server")
	case connection.peer == nil || connection.gone || connection.closing:
		return fmt.Errorf("disconnect: %w", connection.notConnected())
	}
	if err := s.markClosing(connection); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	s.disconnect(connection)
	return nil
}

// Stop disconnects all clients and gives up the name. The server is stopping
// until the clients are gone and all tasks are freed. It fails with
// status.InUse while there are consumers or producers that are not idle.
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
