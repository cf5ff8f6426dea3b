// SPDX-License-Identifier: Apache-2.0

package iomsg_test

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A request travels from the client through the relay to the target, and its response travels back.
// Each of them edits the same 64 bytes in place.
func Example() {
	// The client asks for a read of 4 KiB.
	var wire [iomsg.Size]byte
	iomsg.Encode(wire[:], &iomsg.Message{
		Type: iomsg.Read, UserData: 42, IOSize: 4096, RequesterOffset: 8192, StorageOffset: 1 << 20,
	})

	// The relay adds the slot in its table, and forwards the request.
	iomsg.StampTag(wire[:], 7, 1)

	// The target decodes the request, executes it, and turns it into the response.
	var request iomsg.Message
	iomsg.Decode(wire[:], &request)
	fmt.Printf("%v of %d bytes at offset %d of the volume\n", request.Type, request.IOSize,
		request.StorageOffset)
	iomsg.TurnIntoResult(wire[:], status.Success)

	// The relay finds its slot in the response, and the client finds its user data.
	var response iomsg.Message
	iomsg.Decode(wire[:], &response)
	fmt.Printf("%v %v for slot %d, user data %d\n",
		response.Type, response.Result, response.Slot, response.UserData)
	// Output:
	// read of 4096 bytes at offset 1048576 of the volume
	// result SUCCESS for slot 7, user data 42
}
