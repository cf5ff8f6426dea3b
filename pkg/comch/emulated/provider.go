package emulated

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

type provider struct {
	directory string
	log       *zap.Logger
	limits    Limits
}

// New makes the provider. It touches nothing until it is used.
func New(options Options) comch.Provider {
	p := &provider{directory: options.Directory, log: options.Logger, limits: options.Limits.complete()}
	if p.directory == "" {
		p.directory = DefaultDirectory()
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	return p
}

func (p *provider) Name() string { return providerName }

func (p *provider) Capabilities(device string) (comch.Capabilities, error) {
	if err := checkName("device", device); err != nil {
		return comch.Capabilities{}, err
	}
	return p.limits.capabilities(), nil
}

func (p *provider) Listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listen as Comch server %q: %w", config.Name, err)
	}
	s, err := p.listen(config)
	if err != nil {
		return nil, fmt.Errorf("listen as Comch server %q: %w", config.Name, err)
	}
	return s, nil
}

func (p *provider) listen(config comch.ServerConfig) (*server, error) {
	if err := p.completeServer(&config); err != nil {
		return nil, err
	}
	c, err := p.claim(&config)
	if err != nil {
		return nil, err
	}
	listener, err := c.listen(config.AllowsOthers())
	if err != nil {
		c.abandon()
		return nil, err
	}
	return newServer(p, config, c, listener), nil
}

// completeServer fills in the defaults and refuses what cannot be.
func (p *provider) completeServer(config *comch.ServerConfig) error {
	setDefault(&config.Device, DefaultDevice)
	setDefault(&config.Representor, DefaultRepresentor)
	setDefault(&config.MaxMessageSize, p.limits.MaxMessageSize)
	setDefault(&config.ReceiveQueue, min(defaultReceiveQueue, p.limits.MaxReceiveQueue))
	if err := p.completeAdmission(&config.Admission); err != nil {
		return err
	}
	if err := checkName("device", config.Device); err != nil {
		return err
	}
	if err := checkName("representor", config.Representor); err != nil {
		return err
	}
	if err := checkName("server name", config.Name); err != nil {
		return err
	}
	return p.checkGreeting(greeting{config.MaxMessageSize, config.ReceiveQueue})
}

func (p *provider) completeAdmission(a *comch.Admission) error {
	setDefault(&a.MaxClients, min(defaultMaxClients, p.limits.MaxClients))
	setDefault(&a.MaxExportBytes, p.limits.MaxExportBytes)
	return checkCount("MaxClients", a.MaxClients, p.limits.MaxClients)
}

func (p *provider) checkGreeting(g greeting) error {
	if err := checkCount("MaxMessageSize", g.maxMessageSize, p.limits.MaxMessageSize); err != nil {
		return err
	}
	return checkCount("ReceiveQueue", g.receiveQueue, p.limits.MaxReceiveQueue)
}

func setDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

func checkCount(what string, value, limit int) error {
	if value < 1 || value > limit {
		return status.Errorf(status.InvalidValue, "%s %d is not within 1 and %d", what, value, limit)
	}
	return nil
}

// claim makes the directory of the server and takes its name.
func (p *provider) claim(config *comch.ServerConfig) (*claim, error) {
	device, err := p.serverDirectory(config, config.AllowsOthers())
	if err != nil {
		return nil, err
	}
	c, err := claimName(device, config.Name)
	if err != nil {
		device.close()
		return nil, err
	}
	return c, nil
}

// serverDirectory opens the directory of a server and makes what leads to it
// if need be, open to every user if public.
func (p *provider) serverDirectory(config *comch.ServerConfig, public bool) (*directory, error) {
	root, err := makeRoot(p.directory, public)
	if err != nil {
		return nil, err
	}
	defer root.close()
	host, err := root.make(config.Representor, public)
	if err != nil {
		return nil, err
	}
	defer host.close()
	return host.make(config.Device, public)
}

// letOthersIn opens the way to a running server to every user: who may
// connect is the server's to say.
func (p *provider) letOthersIn(config *comch.ServerConfig) error {
	device, err := p.serverDirectory(config, true)
	if err != nil {
		return err
	}
	defer device.close()
	return device.openSocket(config.Name)
}

func (p *provider) Connect(ctx context.Context, config comch.ClientConfig) (comch.Connection, error) {
	c, err := p.connect(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to Comch server %q of device %s: %w", config.Name, config.Device, err)
	}
	return c, nil
}

func (p *provider) connect(ctx context.Context, config comch.ClientConfig) (*connection, error) {
	setDefault(&config.Device, DefaultHostDevice)
	setDefault(&config.MaxMessageSize, p.limits.MaxMessageSize)
	setDefault(&config.ReceiveQueue, min(defaultReceiveQueue, p.limits.MaxReceiveQueue))
	if err := checkName("device", config.Device); err != nil {
		return nil, err
	}
	if err := checkName("server name", config.Name); err != nil {
		return nil, err
	}
	own := greeting{config.MaxMessageSize, config.ReceiveQueue}
	if err := p.checkGreeting(own); err != nil {
		return nil, err
	}
	server, err := lookup(ctx, p.directory, config.Device, config.Name)
	if err != nil {
		return nil, err
	}
	s := newSocket(server.conn, config.MaxMessageSize)
	peer, err := peerOf(server.conn)
	if err != nil {
		s.close()
		return nil, err
	}
	agreed, err := greetServer(ctx, s, own)
	if err != nil {
		s.close()
		return nil, err
	}
	c := newConnection(clientRole, s, peer, agreed, p.limits, p.log)
	c.start()
	return c, nil
}
