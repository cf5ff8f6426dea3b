// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// An initiator opens a volume of a relay. The conversation runs over an in-memory transport;
// NewComchTransport, NewTCPTransport, and NewTLSClient return those that programs use.
func Example() {
	ctx := context.Background()
	atInitiator, atRelay := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	relay := controlmsg.NewResponder(atRelay, controlmsg.EndpointConfig{Role: controlmsg.RoleRelay})
	served := make(chan struct{})
	go func() {
		defer close(served)
		replyToOpenVolume(ctx, relay)
	}()

	// The first request agrees on the protocol version and on limits.
	initiator := controlmsg.NewRequester(atInitiator,
		controlmsg.EndpointConfig{Role: controlmsg.RoleInitiator})
	hello, err := initiator.Greet(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("protocol version", hello.Version)

	// A request that the relay rejects fails with the code of the relay. OpenVolume may be
	// repeated.
	_, err = controlmsg.Call[*controlmsg.OpenVolumeReply](ctx, initiator,
		&controlmsg.OpenVolume{Volume: "disc"})
	fmt.Println("rejected:", errors.Is(err, status.NotFound))
	reply, err := controlmsg.Call[*controlmsg.OpenVolumeReply](ctx, initiator,
		&controlmsg.OpenVolume{Volume: "disk"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %d bytes in blocks of %d\n", reply.Volume, reply.Size, reply.BlockSize)

	// A request out of order is not even sent.
	_, err = initiator.Call(ctx, &controlmsg.StartStorage{})
	fmt.Println("out of order:", errors.Is(err, status.BadState))

	initiator.Close(nil)
	<-served
	// Output:
	// protocol version 1
	// rejected: true
	// disk: 1048576 bytes in blocks of 4096
	// out of order: true
}

// replyToOpenVolume replies to requests until the initiator closes the conversation. Next returns
// only requests that are valid and in order.
func replyToOpenVolume(ctx context.Context, relay *controlmsg.Responder) {
	defer relay.Close(nil)
	for {
		request, err := relay.Next(ctx)
		if err != nil {
			return
		}
		open, ok := request.Message.(*controlmsg.OpenVolume)
		if !ok || open.Volume != "disk" {
			err = relay.Fail(ctx, request.Correlation, status.Errorf(status.NotFound,
				"no such volume"))
		} else {
			err = relay.Reply(ctx, request.Correlation, &controlmsg.OpenVolumeReply{
				Volume: "disk", UUID: [16]byte{1}, WriteVerifier: 1, Size: 1 << 20, BlockSize: 4096,
				MaxQueues: 4, MaxDepth: 64, MaxBufferSize: 1 << 20, Transport: "iwarp",
			})
		}
		if err != nil {
			return
		}
	}
}
