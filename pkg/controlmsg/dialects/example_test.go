// SPDX-License-Identifier: Apache-2.0

package dialects_test

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
)

func Example() {
	request := &dialects.Envelope{ID: 4, Correlation: 4, Message: &dialects.Shutdown{}}
	encoded, err := dialects.Encode(dialects.DOCA3_2, request)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%x\n", encoded)
	decoded, err := dialects.Decode(dialects.Detect(encoded), encoded)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(decoded.Message.Name())
	// Output:
	// 0000000c0000000b0000000400000004
	// shutdown_request
}
