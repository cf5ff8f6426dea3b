// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/gateway"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// docs/guides/client.md shows the bodies of these examples: TestTheGuideShowsTheseExamples.

// chain starts a target and a relay in this process, for the examples. provider reaches the relay.
func chain() (provider comch.Provider, stop func()) {
	ctx := context.Background()
	directory, err := os.MkdirTemp("", "client-guide")
	must(err)
	channel := emulated.New(emulated.Options{Directory: filepath.Join(directory, "comch")})
	network := iwarp.New(iwarp.Options{})
	stopTarget, address := startTarget(ctx, network, netip.MustParseAddr("127.0.0.1"), "disk")
	stopRelay := startRelay(ctx, channel, network, address, "disk")
	return channel, func() {
		stopRelay()
		stopTarget()
		must(os.RemoveAll(directory))
	}
}

func ExampleOpen() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()

	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A Volume is an io.ReaderAt and an io.WriterAt, so everything that works on them works on it.
	copied, err := io.Copy(io.NewOffsetWriter(disk, 1000), bytes.NewReader([]byte("hello, block")))
	fmt.Println(copied, err)
	text, err := io.ReadAll(io.NewSectionReader(disk, 1000, 12))
	fmt.Printf("%q %v\n", text, err)
	if err := disk.Flush(); err != nil { // now it survives the target
		fmt.Println(err)
	}
	if err := disk.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 12 <nil>
	// "hello, block" <nil>
}

func ExampleVolume_Size() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()
	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
	})
	must(err)

	whole := io.NewSectionReader(disk, 0, disk.Size())
	if _, err := whole.Seek(-4096, io.SeekEnd); err != nil {
		fmt.Println(err)
	}
	last, err := io.ReadAll(whole)
	fmt.Println(len(last), err)

	must(disk.Close(ctx))
	// Output: 4096 <nil>
}

// Any volume with a queue is an NBD disk in three lines.
func Example_nbd() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()
	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice, Queues: 1,
	})
	must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)

	export, err := gateway.Of(disk)
	must(err)
	server, err := nbd.NewServer(nbd.Config{Workers: disk.Info().Queues})
	must(err)
	must(errors.Join(server.AddExport("disk", export), server.Serve(listener)))

	conn, err := net.Dial("tcp", listener.Addr().String())
	must(err)
	greeting := make([]byte, 8)
	_, err = io.ReadFull(conn, greeting)
	fmt.Printf("%s %v\n", greeting, err)
	must(conn.Close())

	must(server.Close(ctx)) // first, because it uses the memory of the volume
	must(disk.Close(ctx))
	// Output: NBDMAGIC <nil>
}

func ExampleVolume_ReadAtContext() {
	provider, stop := chain()
	defer stop()
	disk, err := client.Open(context.Background(), client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
		Reconnect: &retry.Policy{}, // wait for a relay or target that went away
	})
	must(err)

	block := make([]byte, 4096)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = disk.ReadAtContext(ctx, block, 0)
	switch {
	case err == nil:
		fmt.Println("read")
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Println("the volume did not come back in time")
	case errors.Is(err, status.IOFailed):
		fmt.Println("the target's disk failed")
	}

	must(disk.Close(context.Background()))
	// Output: read
}

func ExampleQueue() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()

	const depth, size = 32, 4096
	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
		Queues: 1, Depth: depth, BufferSize: size,
	})
	must(err)
	engine, err := progress.NewEngine(progress.Policy{})
	must(err)
	queue := disk.Queue(0)
	must(queue.Attach(engine))

	// Read the first 200 blocks, 32 at a time. The data of the request with tag t arrives in
	// buffer t of the volume's memory.
	results := make([]client.Result, depth)
	free := make([]uint64, depth)
	for i := range free {
		free[i] = uint64(i)
	}
	next, done := uint64(0), 0
	for done < 200 {
		for next < 200 && len(free) > 0 {
			tag := free[len(free)-1]
			must(queue.Submit(&client.Request{Type: client.Read, Offset: next * size,
				Length: size, Memory: tag * size, Tag: tag}))
			free = free[:len(free)-1]
			next++
		}
		queue.Ring()
		n := queue.Poll(results)
		for _, result := range results[:n] {
			must(result.Err())
			_ = disk.Memory()[result.Tag*size:][:size] // the data
			free = append(free, result.Tag)
			done++
		}
		engine.Idle(n) // sleeps if there is nothing to do
	}
	fmt.Println(done, "blocks")

	queue.Detach(engine)
	must(engine.Close())
	must(disk.Close(ctx))
	// Output: 200 blocks
}

func ExampleOwner() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()

	config := client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
		Exclusive: true, Owner: client.NewOwner("database on host-a"),
	}
	disk, err := client.Open(ctx, config)
	must(err)
	log, err := client.Open(ctx, config) // the same owner
	must(err)
	config.Owner = client.NewOwner("backup on host-b")
	_, err = client.Open(ctx, config)
	fmt.Println(errors.Is(err, status.InUse))
	info, err := client.Describe(ctx, config)
	must(err)
	fmt.Println(info.Sessions, "sessions")

	must(errors.Join(disk.Close(ctx), log.Close(ctx)))
	// Output:
	// true
	// 2 sessions
}

func ExampleVolume_WriteVAt() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()
	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
	})
	must(err)

	header, body := []byte("length 5\n"), []byte("block")
	_, err = disk.WriteVAt([][]byte{header, body}, 1000)
	must(err)
	for e, err := range disk.AllExtents(ctx, 0, disk.Size()) {
		must(err)
		if !e.IsHole() {
			fmt.Printf("%d bytes of data at %d\n", e.Length, e.Offset)
		}
	}

	must(disk.Closer().Close())
	// Output: 4096 bytes of data at 0
}

func ExampleQueue_Submit_segments() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()
	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice, Queues: 1,
	})
	must(err)
	queue := disk.Queue(0)
	copy(queue.Memory()[5*4096:], "first")
	copy(queue.Memory()[4096:], "last")

	request := client.Request{Type: client.Write, Offset: 8192, Length: 3 * 4096,
		Segments: []client.Segment{
			{Memory: 5 * 4096, Length: 4096}, // first block 5 of the memory, then 0 and 1
			{Memory: 0, Length: 2 * 4096},
		}}
	must(queue.Submit(&request))

	queue.Ring()
	results := make([]client.Result, 1)
	for queue.Poll(results) == 0 {
	}
	must(results[0].Err())
	first, last := make([]byte, 5), make([]byte, 4)
	_, err = disk.ReadAt(first, 8192)
	must(err)
	_, err = disk.ReadAt(last, 8192+2*4096)
	fmt.Printf("%s %s %v\n", first, last, err)
	must(disk.Close(ctx))
	// Output: first last <nil>
}

func ExampleQueue_EventDescriptor() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()
	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice, Queues: 1,
	})
	must(err)
	queue := disk.Queue(0)

	descriptor, err := queue.EventDescriptor()
	must(err)
	left := 100
	var next func(*client.Result)
	next = func(result *client.Result) {
		must(result.Err())
		if left--; left > 0 {
			must(queue.Submit(&client.Request{Type: client.Read, Length: 4096, Done: next}))
		}
	}
	must(queue.Submit(&client.Request{Type: client.Read, Length: 4096, Done: next}))
	queue.Ring()
	for left > 0 {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			must(err)
		}
		queue.Process() // also rings for what the functions have submitted
	}
	fmt.Println("100 reads")

	must(disk.Close(ctx))
	// Output: 100 reads
}

func ExampleConfig_memory() {
	provider, stop := chain()
	defer stop()
	ctx := context.Background()

	shared, err := memory.Alloc("my data", 1<<20)
	must(err)
	disk, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
		Queues: 1, BufferSize: 64 << 10, SyncDepth: -1, Memory: shared,
	})
	must(err)
	copy(shared.Bytes(), "hello, block")
	must(disk.Queue(0).Submit(&client.Request{Type: client.Write, Length: 4096}))
	disk.Queue(0).Ring()
	err = disk.Close(ctx) // waits for the write, and until the relay has released the memory
	if !errors.Is(err, client.ErrQuarantined) {
		err = errors.Join(err, shared.Close()) // nobody else uses it any more
	}
	must(err)

	again, err := client.Open(ctx, client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice,
	})
	must(err)
	text := make([]byte, 12)
	_, err = again.ReadAt(text, 0)
	fmt.Printf("%s %v\n", text, err)
	must(again.Close(ctx))
	// Output: hello, block <nil>
}
