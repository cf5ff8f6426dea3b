// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// A thread submits requests to a queue of its own, and polls for their completion.
func Example() {
	spec, err := volume.ParseSpec("disk=memory:1MiB", 4096)
	must(err)
	disk, err := volume.Open(spec)
	must(err)
	info := disk.Info()
	fmt.Printf("%s: %d bytes in blocks of %d\n", info.Name, info.Size, info.BlockSize)

	queue, err := disk.NewQueue(8)
	must(err)
	write := &volume.Request{Operation: iomsg.OpWrite, Offset: 8192, Length: 4096,
		Buffer: make([]byte, 4096)}
	copy(write.Buffer, "hello")
	run(queue, write)

	// Offsets and lengths are multiples of the block size. Requests are reused.
	read := &volume.Request{Operation: iomsg.OpRead, Offset: 8192, Length: 4096,
		Buffer: make([]byte, 4096)}
	run(queue, read)
	fmt.Printf("%v: %q\n", read.Operation, read.Buffer[:5])

	// A flush makes the completed writes durable, if the volume is on a disk.
	run(queue, &volume.Request{Operation: iomsg.OpFlush})

	must(queue.Close())
	must(disk.Close(context.Background()))
	// Output:
	// disk: 1048576 bytes in blocks of 4096
	// read: "hello"
}

// run submits one request and waits for it. A real program keeps many in flight, and sleeps on the
// queue, which is a progress.Waiter, when it has nothing else to do.
func run(queue volume.Queue, request *volume.Request) {
	must(queue.Submit(request))
	var completed [1]*volume.Request
	for queue.Poll(completed[:]) == 0 {
		progress.Yield()
	}
	must(request.Err)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
