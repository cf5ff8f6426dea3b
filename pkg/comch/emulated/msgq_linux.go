package emulated

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/internal/msgq"
)

// NewDPA returns a DPA that runs on a thread of this process.
func (p *provider) NewDPA(config comch.DPAConfig) (comch.DPA, error) {
	setDefault(&config.Device, DefaultDevice)
	if err := checkName("device", config.Device); err != nil {
		return nil, fmt.Errorf("create DPA: %w", err)
	}
	dpa, err := msgq.NewDPA(config.CPUs)
	if err != nil {
		return nil, fmt.Errorf("create DPA: %w", err)
	}
	return dpa, nil
}

// NewMsgQ returns a message queue that runs over a connection of this process to itself.
func (p *provider) NewMsgQ(config comch.MsgQConfig) (comch.MsgQ, error) {
	limits := p.limits
	setDefault(&config.MaxConsumers, limits.MaxConsumers)
	setDefault(&config.MaxProducers, limits.MaxProducers)
	err := errors.Join(
		checkCount("MaxConsumers", config.MaxConsumers, limits.MaxConsumers),
		checkCount("MaxProducers", config.MaxProducers, limits.MaxProducers))
	if err != nil {
		return nil, fmt.Errorf("create message queue %v: %w", config.Direction, err)
	}
	limits.MaxConsumers, limits.MaxProducers = config.MaxConsumers, config.MaxProducers
	connect := func() (cpuSide, dpaSide comch.Connection, err error) {
		return p.newLoopback(limits)
	}
	queue, err := msgq.New(config, limits.capabilities(), connect)
	if err != nil {
		return nil, fmt.Errorf("create message queue %v: %w", config.Direction, err)
	}
	return queue, nil
}

// newLoopback connects this process to itself and returns both ends.
func (p *provider) newLoopback(limits Limits) (client, server comch.Connection, err error) {
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
	connect := func(role role, conn *net.UnixConn) *connection {
		s := newSocket(conn, limits.MaxMessageSize)
		c := newConnection(role, s, self, agreed, limits, p.log)
		c.start()
		return c
	}
	return connect(clientRole, first), connect(serverRole, second), nil
}

// connOf returns a connection on a socket. It takes ownership of descriptor.
func connOf(descriptor int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(descriptor), "socket")
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use socket: %w", err)
	}
	return conn.(*net.UnixConn), nil
}
