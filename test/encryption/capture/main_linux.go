// SPDX-License-Identifier: Apache-2.0

// Command capture counts the frames that leave a network interface by their kind, and those that
// contain a text, until SIGTERM.
//
// Usage: capture INTERFACE TEXT
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1], []byte(os.Args[2])); err != nil {
		fmt.Fprintln(os.Stderr, "capture:", err)
		os.Exit(1)
	}
}

// bigEndian returns a number in the order of bytes that the kernel expects in a field of its own.
func bigEndian(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

func run(name string, text []byte) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(bigEndian(unix.ETH_P_ALL)))
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	// Frames that find no room would be missing in the count.
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		return err
	}
	err = unix.Bind(socket, &unix.SockaddrLinklayer{Ifindex: device.Index,
		Protocol: bigEndian(unix.ETH_P_ALL)})
	if err != nil {
		return err
	}
	wait := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return err
	}
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGTERM)
	fmt.Println("capturing")
	kinds, readable := map[string]int{}, 0
	frame := make([]byte, 1<<16+64)
	for {
		n, from, err := unix.Recvfrom(socket, frame, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if len(stopped) == 0 {
				continue
			}
			for _, kind := range slices.Sorted(maps.Keys(kinds)) {
				fmt.Println(kind, kinds[kind])
			}
			fmt.Println("readable", readable)
			return nil
		case err != nil:
			return err
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			kinds[kindOf(frame[:n])]++
			if bytes.Contains(frame[:n], text) {
				readable++
			}
		}
	}
}

// kindOf names what a frame carries.
func kindOf(frame []byte) string {
	const header = 14 // of Ethernet
	if len(frame) < header+20 {
		return "short"
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		return "arp"
	case unix.ETH_P_MACSEC:
		return "macsec"
	case unix.ETH_P_IP:
		switch frame[header+9] {
		case unix.IPPROTO_TCP:
			return "tcp"
		case unix.IPPROTO_UDP:
			return "udp"
		case unix.IPPROTO_ESP:
			return "esp"
		}
	}
	return "other"
}
