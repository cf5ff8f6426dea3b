// SPDX-License-Identifier: Apache-2.0

package command

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/network"
)

// nbdListenFlags determine where the gateway listens, and to whom.
type nbdListenFlags struct {
	socket    string
	address   string
	plainText bool
	users     []string
	anyUser   bool
	tls       mutualtls.Files
	names     []string
}

func (l *nbdListenFlags) add(f *pflag.FlagSet) {
	f.StringVar(&l.socket, "socket", "", "listen on this Unix socket, a `path`")
	f.StringVar(&l.address, "listen", "",
		"listen on this `ADDRESS:PORT`; needs TLS unless the address is a loopback address")
	f.BoolVar(&l.plainText, "plain-text", false,
		"listen without TLS on any address: anyone who can connect can read and write the volume")
	f.StringArrayVar(&l.users, "allow-user", nil,
		"let this `user`, by name or number, connect to the Unix socket, besides root and the user "+
			"of this program; repeatable")
	f.BoolVar(&l.anyUser, "allow-any-user", false, "let all users connect to the Unix socket")
	f.StringVar(&l.tls.Certificate, "tls-cert", "",
		"require mutual TLS on TCP: PEM file with the certificate")
	f.StringVar(&l.tls.Key, "tls-key", "", "PEM file with the certificate's private key")
	f.StringVar(&l.tls.CA, "tls-ca", "",
		"PEM file with the authorities that may sign a client's certificate")
	f.StringVar(&l.tls.Revoked, "tls-revoked", "",
		"PEM file with the authorities' lists of revoked certificates (CRL)")
	f.StringArrayVar(&l.names, "tls-allowed-name", nil,
		"accept only clients whose certificate has this `name`: dns:NAME, uri:URI, or ip:ADDRESS, "+
			"where dns: and ip: may be left out; repeatable")
}

func (l *nbdListenFlags) hasTLS() bool { return l.tls.Certificate != "" }

// check checks the flags. Without a place to listen, running a command or being started by systemd
// provides one.
func (l *nbdListenFlags) check(set *pflag.FlagSet, runsCommand bool) error {
	activated := os.Getenv("LISTEN_FDS") != ""
	switch {
	case l.socket == "" && l.address == "" && !runsCommand && !activated:
		return program.Usagef("there is no place to listen: give --socket PATH, " +
			"--listen ADDRESS:PORT, or --run COMMAND")
	case l.anyUser && len(l.users) > 0:
		return program.Usagef("--allow-any-user and --allow-user exclude each other")
	case (l.anyUser || len(l.users) > 0) && l.socket == "" && !activated:
		return program.Usagef("--allow-user and --allow-any-user are for clients of a Unix socket: " +
			"give --socket PATH; those of --listen prove who they are by --tls-cert, --tls-key, " +
			"--tls-ca, and --tls-allowed-name")
	case l.plainText && l.address == "" && !activated:
		return program.Usagef("--plain-text is for --listen ADDRESS:PORT: a Unix socket needs no TLS")
	case len(l.names) > 0 && !l.hasTLS():
		return program.Usagef("--tls-allowed-name requires --tls-cert")
	case l.hasTLS() && l.plainText:
		return program.Usagef("--plain-text and --tls-cert exclude each other")
	}
	if err := endpoint.CheckSocketPath(l.socket); err != nil {
		return program.Usagef("--socket %q: %w", l.socket, err)
	}
	if l.address == "" {
		return nil
	}
	address, err := netip.ParseAddrPort(l.address)
	if err != nil {
		return program.Usagef("--listen %q is not an IP address and a port, as in 127.0.0.1:10809 or "+
			"[::1]:10809", l.address)
	}
	if err := endpoint.CheckZone(address.Addr()); err != nil {
		return program.Usagef("--listen %q: %w", l.address, err)
	}
	if !l.hasTLS() && !l.plainText && !address.Addr().IsLoopback() {
		return program.Usagef("--listen %v without TLS would let everybody on the network read and "+
			"write the volume: give --tls-cert, --tls-key and --tls-ca, or --plain-text", address)
	}
	return nil
}

// credentials returns a function that returns the TLS configuration for a connection; nil if there
// is no TLS.
func (l *nbdListenFlags) credentials(log *zap.Logger) (func() *tls.Config, error) {
	if !l.hasTLS() {
		return nil, nil
	}
	credentials, err := mutualtls.Load(l.tls, log)
	if err != nil {
		return nil, program.Usage(err)
	}
	var allowed []mutualtls.Name
	for _, text := range l.names {
		name, err := mutualtls.ParseName(text)
		if err != nil {
			return nil, program.Usagef("--tls-allowed-name %q %w", text, err)
		}
		allowed = append(allowed, name)
	}
	return func() *tls.Config { return credentials.ServerWithoutProtocol(allowed) }, nil
}

// admission returns a function that admits the clients of Unix sockets by their user.
func (l *nbdListenFlags) admission() (func(net.Conn) (string, error), error) {
	allowed, err := unixsocket.UserIDs(l.users)
	if err != nil {
		return nil, program.Usage(fmt.Errorf("--allow-user: %w", err))
	}
	allowed = append(allowed, 0, uint32(os.Geteuid()))
	return func(conn net.Conn) (string, error) {
		if _, ok := conn.(*net.UnixConn); !ok {
			return "", nil
		}
		user, process, err := unixsocket.Peer(conn)
		if err != nil {
			return "", err
		}
		client := fmt.Sprintf("process %d of user %d", process, user)
		if !l.anyUser && !slices.Contains(allowed, user) {
			return client, errors.New("the user may not connect: see --allow-user")
		}
		return client, nil
	}, nil
}

// nbdPlaces are the sockets that a gateway listens on.
type nbdPlaces struct {
	listeners []net.Listener
	directory string // to remove in the end; "" for none
}

// open listens. A gateway that only runs a command listens on a socket in a new private directory.
func (l *nbdListenFlags) open(runsCommand bool) (*nbdPlaces, error) {
	p := &nbdPlaces{}
	var err error
	if p.listeners, err = activation.Listeners(); err != nil {
		return nil, fmt.Errorf("sockets from the service manager: %w", err)
	}
	p.listeners = slices.DeleteFunc(p.listeners, func(l net.Listener) bool { return l == nil })
	if err := l.checkActivated(p.listeners); err != nil {
		return nil, err
	}
	socket := l.socket
	if socket == "" && l.address == "" && len(p.listeners) == 0 {
		if !runsCommand {
			return nil, errors.New("the service manager has passed no stream socket")
		}
		if p.directory, err = os.MkdirTemp("", "zc-relay-nbd"); err != nil {
			return nil, err
		}
		socket = filepath.Join(p.directory, "socket")
	}
	if socket != "" {
		mode := fs.FileMode(0o600)
		if l.anyUser || len(l.users) > 0 {
			mode = 0o666 // admission checks the user
		}
		listener, err := unixsocket.Listen(socket, mode)
		if err != nil {
			p.close()
			return nil, fmt.Errorf("--socket: %w", err)
		}
		p.listeners = append(p.listeners, listener)
	}
	if l.address != "" {
		listener, err := network.ListenTCP(l.address)
		if err != nil {
			p.close()
			return nil, fmt.Errorf("--listen: %w", err)
		}
		p.listeners = append(p.listeners, listener)
	}
	return p, nil
}

// checkActivated applies the rule for --listen to the sockets of the service manager.
func (l *nbdListenFlags) checkActivated(listeners []net.Listener) error {
	for _, listener := range listeners {
		address, ok := listener.Addr().(*net.TCPAddr)
		if ok && !address.IP.IsLoopback() && !l.hasTLS() && !l.plainText {
			return program.Usagef("the service manager's socket %v is not a loopback address and "+
				"there is no TLS: give --tls-cert, --tls-key and --tls-ca, or --plain-text", address)
		}
	}
	return nil
}

func (p *nbdPlaces) close() {
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
	p.cleanUp()
}

// cleanUp removes the directory of a socket that was made for a command.
func (p *nbdPlaces) cleanUp() {
	if p.directory != "" {
		_ = os.RemoveAll(p.directory)
	}
}

// allURIs returns the URIs of all exports at all places to listen.
func (p *nbdPlaces) allURIs(exports []servedExport, secure bool) []string {
	var uris []string
	for i := range p.listeners {
		uris = append(uris, (&nbdPlaces{listeners: p.listeners[i:]}).uris(exports, secure)...)
	}
	return uris
}

// uris returns the URIs of all exports at the first place to listen ("The NBD URI format",
// doc/uri.md).
func (p *nbdPlaces) uris(exports []servedExport, secure bool) []string {
	var uris []string
	for _, e := range exports {
		scheme, path := "nbd", (&url.URL{Path: "/" + e.name}).EscapedPath()
		if secure {
			scheme = "nbds"
		}
		switch address := p.listeners[0].Addr().(type) {
		case *net.UnixAddr:
			socket := (&url.URL{Path: address.Name}).EscapedPath()
			uris = append(uris, scheme+"+unix://"+path+"?socket="+socket)
		case *net.TCPAddr:
			where := url.URL{Scheme: scheme, Host: hostOf(address)}
			uris = append(uris, where.String()+path)
		}
	}
	return uris
}

// hostOf returns the address to connect to.
func hostOf(address *net.TCPAddr) string {
	if address.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", strconv.Itoa(address.Port))
	}
	return address.String()
}

// environment returns the variables of the command of --run, which have the names that nbdkit uses.
func (p *nbdPlaces) environment(exports []servedExport, uris []string) []string {
	variables := []string{"uri=" + uris[0], "exportname=" + exports[0].name}
	for _, listener := range p.listeners {
		switch address := listener.Addr().(type) {
		case *net.UnixAddr:
			variables = append(variables, "unixsocket="+address.Name)
		case *net.TCPAddr:
			variables = append(variables, "port="+strconv.Itoa(address.Port))
		}
	}
	return variables
}
