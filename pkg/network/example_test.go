// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/network"
)

// A connection over the kernel's TCP. Tests put networks of their own in its place.
func Example() {
	ctx := context.Background()
	var kernel network.Kernel
	listener, err := kernel.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	local, err := kernel.SourceAddress(listener.Address())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("from", local)
	stream, err := kernel.Dial(ctx, local, listener.Address())
	if err != nil {
		log.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := stream.Write([]byte("hello")); err != nil {
		log.Fatal(err)
	}
	text := make([]byte, 5)
	_, err = io.ReadFull(accepted, text)
	fmt.Printf("%s %v\n", text, err)
	for _, c := range []io.Closer{stream, accepted, listener} {
		if err := c.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// from 127.0.0.1
	// hello <nil>
}
