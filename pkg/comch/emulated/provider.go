// SPDX-License-Identifier: Apache-2.0

// Package emulated is a Comch provider for one Linux machine: the channel between host and DPU is a
// Unix socket and shared memory.
//
// Clients find servers in the file system: a server listens at
// DIRECTORY/REPRESENTOR/DPU-DEVICE/NAME, and a client of host device X looks for
// DIRECTORY/X/*/NAME. Control messages travel over a SOCK_SEQPACKET socket, and so do the
// descriptors of shared memory and doorbells; only goroutines of the provider use that socket. The
// data path is one ring in shared memory per consumer: a producer copies its message into the next
// posted buffer and publishes the completion. While the peer polls, sending makes no system call.
//
// Neither side trusts the other. The server creates the memory of all rings and seals it against
// resizing, so that no access to it can fault. Each side loads every shared value once and checks
// it; a peer that violates the protocol loses its connection. A doorbell is a pair of datagram
// sockets, one end per side, so that nothing a peer does to its end can block the other side or
// keep its thread from sleeping. Closing a descriptor that the peer has passed can block, so only
// goroutines of the connection close it. The server frees the memory of a ring once its consumer is
// gone, even if the client keeps the file open.
//
// The files can be read from the top. listen.go, connect.go, and msgq.go make connections, and
// server.go accepts them. serve.go handles what the peer sends, with remote.go and export_linux.go.
// local.go makes producers and consumers, which producer.go and consumer.go hold. All of these know
// connection.go; it knows only its parts, which do not know it: tables, queues, and rings.
package emulated

import (
	"cmp"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
)

// Options configures a provider. The zero value is usable.
type Options struct {
	// Directory is where servers and clients meet; "" means DefaultDirectory(). It must belong to
	// root or to the user of this process, and nobody else may be able to write to it. For a client
	// it may also belong to a system user to whom root has given it, such as the user of a daemon
	// with a runtime directory. A server
	// creates it with mode 0700. A server that admits other users makes the directory, and its own
	// files in it, accessible to everybody. Those users must also be able to search all parent
	// directories, so a user's runtime directory does not work.
	Directory string
	// Sockets replaces the Unix sockets in Directory, for instance in a simulation. nil means
	// UnixSockets(Directory).
	Sockets Sockets
	// ReachImports makes ImportMemory accept any memory of programs on the emulated libdoca. What
	// cannot be mapped, because it does not consist of whole pages, becomes an opaque region with a
	// memory.Copier, which copies through the address space of the program. The kernel must allow
	// this process to trace the program. The program can delay a copy for as long as it likes, so
	// this is not for a server of clients that it does not trust.
	ReachImports bool
	// Peer is what errors of clients call the server, for instance "the DPU's dma-copy"; "" means a
	// relay.
	Peer string
	// Logger records what no call can return, for instance rejected clients. nil disables logging.
	Logger *zap.Logger
	Limits Limits
}

// New returns a provider. It has no side effects until one of its methods is called.
func New(options Options) comch.Provider {
	p := &provider{sockets: options.Sockets, log: options.Logger,
		limits: options.Limits.withDefaults(), reachesImports: options.ReachImports}
	if p.sockets == nil {
		p.sockets = unixSockets{directory: cmp.Or(options.Directory, DefaultDirectory()),
			peer: options.Peer}
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	p.account = account{name: "provider",
		limit: holdings{descriptors: p.limits.MaxDescriptors, ringBytes: p.limits.MaxAllRingBytes}}
	return p
}

type provider struct {
	sockets Sockets
	log     *zap.Logger
	limits  Limits
	account account // of all servers

	reachesImports bool
}

func (p *provider) Name() string { return "emulated" }

// Services implements comch.ServiceLister.
func (p *provider) Services() ([]comch.Service, error) { return p.sockets.Services() }

func (p *provider) Capabilities(device string) (comch.Capabilities, error) {
	d, _, err := p.device(pci.Normalize(device))
	if err != nil {
		return comch.Capabilities{}, fmt.Errorf("get capabilities: %w", err)
	}
	c := p.limits.capabilities()
	c.Server, c.Client = d.CanServe, d.CanConnect
	return c, nil
}
