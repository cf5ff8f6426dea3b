// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// zeroes is a disk of 1 MiB that reads as zeroes, and cannot be written.
type zeroes struct{}

func (zeroes) Info() blockio.Info {
	return blockio.Info{Description: "zeroes", Size: 1 << 20, PreferredBlock: 4096, ReadOnly: true}
}

// Attach is called once by each worker of the server, on its thread.
func (z zeroes) Attach(int, *progress.Engine) (blockio.Disk, error) { return z, nil }

// Barrier has nothing to wait for, because no operation outlives its connection.
func (zeroes) Barrier(context.Context) error { return nil }

func (zeroes) Open(handler blockio.Handler) (blockio.Session, error) {
	return zeroSession{handler}, nil
}

func (zeroes) Poll() int    { return 0 }
func (zeroes) Ring()        {}
func (zeroes) Close() error { return nil }

// zeroSession is a connection's share of the disk.
type zeroSession struct{ handler blockio.Handler }

func (zeroSession) Claim(
	command blockio.Command, flags blockio.CommandFlags, offset, length uint64,
) *blockio.Operation {
	operation := &blockio.Operation{Command: command, Flags: flags, Offset: offset, Length: length}
	if command == blockio.Read {
		operation.Length = min(length, 64<<10) // the server claims others for the rest
		operation.Data = make([]byte, operation.Length)
	}
	return operation
}

// Submit completes the operation at once. A disk that takes longer completes it in Poll.
func (s zeroSession) Submit(operation *blockio.Operation) { s.handler.Completed(operation) }

func (zeroSession) Release(*blockio.Operation) {}
func (zeroSession) Close()                     {}

// A server of a disk that the program makes up. Package gateway has the disks that are volumes.
func Example() {
	server, err := nbd.NewServer(nbd.Config{Workers: 1})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	err = errors.Join(server.AddExport("zeroes", zeroes{}), server.Serve(listener))
	if err != nil {
		log.Fatal(err)
	}

	// A client connects: nbdinfo nbd://127.0.0.1:PORT/zeroes, for instance.
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	greeting := make([]byte, 8)
	_, err = io.ReadFull(conn, greeting)
	fmt.Printf("%s %v\n", greeting, err)

	err = errors.Join(conn.Close(), server.Close(context.Background()))
	if err != nil {
		log.Fatal(err)
	}
	// Output: NBDMAGIC <nil>
}
