// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"context"
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The connection of this transport is lost at its second message.
func ExampleWrap() {
	rule, err := fault.Parse("control:send:nth=2:drop")
	if err != nil {
		log.Fatal(err)
	}
	injector, err := fault.New([]fault.Rule{rule}, nil)
	if err != nil {
		log.Fatal(err)
	}
	near, _ := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	transport := hook.Wrap(near, hook.Config{Injector: injector})
	for range 2 {
		fmt.Println(status.CodeOf(transport.Send(context.Background(), []byte("message"))))
	}
	// Output:
	// SUCCESS
	// NOT_CONNECTED
}
