// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"net"
	"os"
)

// volumeSize is the size of the served memory in bytes.
const volumeSize = 256 << 20

// runStorage serves requests from memory.
func runStorage(p parameters) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	temporary := p.socketFile() + ".new"
	if err := os.WriteFile(temporary, []byte(listener.Addr().String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(temporary, p.socketFile()); err != nil {
		return err
	}
	sockets, err := newPoller(p.sessions)
	if err != nil {
		return err
	}
	volume := make([]byte, volumeSize)
	for i := range volume {
		volume[i] = byte(i)
	}
	sessions := make([]storage, p.sessions)
	for i := range sessions {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		s := &sessions[i]
		s.p, s.volume = p, volume
		s.in = make([]byte, 0, streamBuffer)
		if s.tcp, err = newStream(connection); err != nil {
			return err
		}
		if err := sockets.watch(i, s.tcp); err != nil {
			return err
		}
	}
	for {
		busy := false
		for _, event := range sockets.ready() {
			served, err := sessions[event.Fd].serve()
			if err != nil {
				return err
			}
			busy = busy || served
		}
		if !busy {
			yield()
		}
	}
}

// storage is a session as the storage sees it.
type storage struct {
	p       parameters
	volume  []byte
	tcp     stream
	in, out []byte
}

// serve carries out all available requests and sends the responses in one write.
func (s *storage) serve() (bool, error) {
	n, err := s.tcp.read(s.in[len(s.in):cap(s.in)])
	if n == 0 || err != nil {
		return false, err
	}
	s.in = s.in[:len(s.in)+n]
	size := messageSize
	if s.p.write {
		size += s.p.blockSize
	}
	blocks := uint64(volumeSize / s.p.blockSize)
	rest := s.in
	s.out = s.out[:0]
	for len(rest) >= size {
		block := binary.BigEndian.Uint64(rest[32:]) % blocks * uint64(s.p.blockSize)
		s.out = append(s.out, rest[:messageSize]...)
		if s.p.write {
			copy(s.volume[block:], rest[messageSize:size])
		} else {
			s.out = append(s.out, s.volume[block:][:s.p.blockSize]...)
		}
		rest = rest[size:]
	}
	s.in = s.in[:copy(s.in[:cap(s.in)], rest)]
	return true, s.tcp.write(s.out)
}
