// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CheckFree returns why no program can listen for TCP connections at an address now, as the error
// of Listen. Unlike Listen, it accepts no connection.
func CheckFree(address netip.AddrPort) error {
	if err := bind(address); err != nil {
		return &net.OpError{Op: "listen", Net: "tcp", Addr: net.TCPAddrFromAddrPort(address),
			Err: os.NewSyscallError("bind", err)}
	}
	return nil
}

// bind binds a socket, as a listener does, and closes it.
func bind(address netip.AddrPort) error {
	family, destination := unix.AF_INET, unix.Sockaddr(nil)
	if a := address.Addr().Unmap(); a.Is4() {
		destination = &unix.SockaddrInet4{Port: int(address.Port()), Addr: a.As4()}
	} else {
		family = unix.AF_INET6
		destination = &unix.SockaddrInet6{Port: int(address.Port()), Addr: a.As16(),
			ZoneId: ZoneIndex(a)}
	}
	socket, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	// Connections that have ended keep no listener from its port, only another listener does.
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return unix.Bind(socket, destination)
}

// ZoneIndex returns the number of the interface that the zone of an address names or numbers, 0 for
// none. Any goroutine may call it.
func ZoneIndex(a netip.Addr) uint32 {
	if index, err := strconv.ParseUint(a.Zone(), 10, 32); err == nil {
		return uint32(index)
	}
	if i, err := net.InterfaceByName(a.Zone()); err == nil {
		return uint32(i.Index)
	}
	return 0
}
