// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"context"
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/hook"
)

// Every second write to this volume fails.
func ExampleWrap() {
	inner, err := volume.Open(volume.Spec{Name: "disk", BlockSize: 512,
		Backend: volume.MemoryBackend{Size: 1 << 20}})
	must(err)
	rule, err := fault.Parse("volume:write:every=2:error=IO_FAILED")
	must(err)
	injector, err := fault.New([]fault.Rule{rule}, nil)
	must(err)
	disk := hook.Wrap(inner, hook.Config{Injector: injector})
	queue, err := disk.NewQueue(1)
	must(err)
	completed := make([]*volume.Request, 1)
	for range 4 {
		must(queue.Submit(&volume.Request{Operation: iomsg.OpWrite, Length: 512,
			Buffer: make([]byte, 512)}))
		for queue.Poll(completed) == 0 {
			progress.Yield()
		}
		fmt.Println(status.CodeOf(completed[0].Err))
	}
	must(queue.Close())
	must(disk.Close(context.Background()))
	// Output:
	// SUCCESS
	// IO_FAILED
	// SUCCESS
	// IO_FAILED
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
