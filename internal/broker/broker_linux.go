// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/binary"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// An importer connects, sends the ID, and gets a Reply, with the memory's file if it has one. The
// connection stays open for as long as the import exists: with its end, either side knows that the
// other has let the memory go. An exporter that takes the memory away sends one byte, and waits for
// the end, or for a byte.

// Timeout bounds each step of the conversation.
const Timeout = 5 * time.Second

// Network is the network of a broker's socket, at the address "@" + Descriptor.Name.
const Network = "unixpacket"

// Reply is the broker's answer.
type Reply struct {
	Code    status.Code
	Access  uint32
	Address uint64
	Length  uint64
	Offset  uint64 // of the memory in the file that comes with the reply
}

const replySize = 4 + 4 + 8 + 8 + 8

// Encode returns the encoded reply.
func (r *Reply) Encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, replySize), uint32(r.Code))
	b = binary.LittleEndian.AppendUint32(b, r.Access)
	b = binary.LittleEndian.AppendUint64(b, r.Address)
	b = binary.LittleEndian.AppendUint64(b, r.Length)
	return binary.LittleEndian.AppendUint64(b, r.Offset)
}

// Import is memory that a broker has handed out.
type Import struct {
	// Socket is the connection to the broker; closing it ends the import.
	Socket *net.UnixConn
	// Exporter is the process that serves the memory, as the kernel reports it.
	Exporter *unix.Ucred
	// File is the descriptor of the file that holds the memory from Offset on, or -1: then the
	// memory can only be reached through the exporter's address space. The caller closes it.
	File   int
	Offset uint64
}

// Open asks the broker that d names for the memory. It fails with status.NotFound if there is no
// such broker, and otherwise with the broker's code.
func Open(d *Descriptor) (*Import, error) {
	dialer := net.Dialer{Timeout: Timeout}
	connection, err := dialer.Dial(Network, "@"+d.Name)
	if err != nil {
		return nil, status.Errorf(status.NotFound,
			"the process that exported the memory is gone: %w", err)
	}
	imported := &Import{Socket: connection.(*net.UnixConn), File: -1}
	if err := imported.ask(d); err != nil {
		if imported.File >= 0 {
			_ = unix.Close(imported.File)
		}
		_ = connection.Close()
		return nil, err
	}
	return imported, nil
}

func (i *Import) ask(d *Descriptor) error {
	var err error
	if i.Exporter, err = Peer(i.Socket); err != nil {
		return err
	}
	_ = i.Socket.SetDeadline(time.Now().Add(Timeout))
	if _, err := i.Socket.Write(d.ID[:]); err != nil {
		return status.Errorf(status.NotConnected, "ask for the memory: %w", err)
	}
	reply, rights := make([]byte, replySize+1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := i.Socket.ReadMsgUnix(reply, rights)
	file, fileErr := passedFile(rights[:oobn])
	i.File = file
	if err != nil {
		return status.Errorf(status.NotConnected, "ask for the memory: %w", err)
	}
	if n != replySize {
		return status.Errorf(status.InvalidValue,
			"ask for the memory: the answer has %d bytes instead of %d", n, replySize)
	}
	_ = i.Socket.SetDeadline(time.Time{})
	if code := status.Code(binary.LittleEndian.Uint32(reply)); code != status.Success {
		return status.Errorf(code, "the exporter has rejected the import")
	}
	if binary.LittleEndian.Uint32(reply[4:]) != d.Access ||
		binary.LittleEndian.Uint64(reply[8:]) != d.Address ||
		binary.LittleEndian.Uint64(reply[16:]) != d.Length {
		return status.Errorf(status.InvalidValue, "the descriptor is not that of the memory")
	}
	i.Offset = binary.LittleEndian.Uint64(reply[24:])
	return fileErr
}

// Watch waits for the end of the import: the exporter takes the memory away, or is gone, or the
// socket's deadline passes. Then it calls revoke, which returns once nobody uses the memory, and
// answers the exporter. Until then it reads messages into buffer and passes them to receive, which
// returns false to end the import.
func (i *Import) Watch(buffer []byte, receive func(message []byte) bool, revoke func()) {
	n, err := i.Socket.Read(buffer)
	for err == nil && receive(buffer[:n]) {
		n, err = i.Socket.Read(buffer)
	}
	revoke()
	if n == 1 {
		_, _ = i.Socket.Write([]byte{1}) // the exporter waits for it
	}
}

// passedFile returns the descriptor of a message, or -1.
func passedFile(rights []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return -1, err
	}
	descriptors, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(descriptors) == 0 {
		return -1, err
	}
	for _, excess := range descriptors[1:] {
		_ = unix.Close(excess)
	}
	return descriptors[0], nil
}

// Peer returns the process at the other end of a socket.
func Peer(socket *net.UnixConn) (credentials *unix.Ucred, err error) {
	raw, err := socket.SyscallConn()
	if err == nil {
		failure := raw.Control(func(descriptor uintptr) {
			credentials, err = unix.GetsockoptUcred(int(descriptor), unix.SOL_SOCKET,
				unix.SO_PEERCRED)
		})
		err = errors.Join(err, failure)
	}
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "identify the peer: %w", err)
	}
	return credentials, nil
}
