package emulated

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// connectToSelf makes both ends of a connection within this process. The first
// is the client's.
func (p *provider) connectToSelf(limits Limits) (client, server *connection, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	first, firstErr := connOf(pair[0])
	second, secondErr := connOf(pair[1])
	if err := errors.Join(firstErr, secondErr); err != nil {
		for _, conn := range []*net.UnixConn{first, second} {
			if conn != nil {
				_ = conn.Close() // nothing has been sent
			}
		}
		return nil, nil, err
	}
	agreed := terms{maxMessageSize: limits.MaxMessageSize, receiveQueue: 1, peerReceiveQueue: 1}
	self := comch.Peer{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	client = newConnection(clientRole, newSocket(first, limits.MaxMessageSize), self, agreed, limits, p.log)
	server = newConnection(serverRole, newSocket(second, limits.MaxMessageSize), self, agreed, limits, p.log)
	client.start()
	server.start()
	return client, server, nil
}

// connOf takes over a descriptor.
func connOf(descriptor int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(descriptor), "socket")
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use socket: %w", err)
	}
	return conn.(*net.UnixConn), nil
}
