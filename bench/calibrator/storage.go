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
	connection, err := listener.Accept()
	if err != nil {
		return err
	}
	tcp, err := newStream(connection)
	if err != nil {
		return err
	}
	volume := make([]byte, volumeSize)
	for i := range volume {
		volume[i] = byte(i)
	}
	in, out := make([]byte, 0, streamBuffer), make([]byte, 0, streamBuffer)
	size := messageSize
	if p.write {
		size += p.blockSize
	}
	blocks := uint64(volumeSize / p.blockSize)
	for {
		n, err := tcp.read(in[len(in):cap(in)])
		if err != nil {
			return err
		}
		if n == 0 {
			yield()
			continue
		}
		in = in[:len(in)+n]
		rest := in
		out = out[:0]
		for len(rest) >= size {
			block := binary.BigEndian.Uint64(rest[32:]) % blocks * uint64(p.blockSize)
			out = append(out, rest[:messageSize]...)
			if p.write {
				copy(volume[block:], rest[messageSize:size])
			} else {
				out = append(out, volume[block:][:p.blockSize]...)
			}
			rest = rest[size:]
		}
		if err := tcp.write(out); err != nil {
			return err
		}
		in = in[:copy(in[:cap(in)], rest)]
	}
}
