// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestVolumeAcceptsNoMoreWritesAfterAFailedFlush(t *testing.T) {
	core, logged := observer.New(zapcore.InfoLevel)
	spec := fileSpec(filepath.Join(t.TempDir(), "volume"), 1<<20)
	spec.Logger = zap.New(core)
	v := open(t, spec)
	opened := v.Status().Since
	fail := true
	volume.SetSync(v, func() error {
		if fail {
			fail = false // like the kernel, report the error once
			return unix.EIO
		}
		return nil
	})
	queue := volumetest.NewQueue(t, v, 4)
	block := make([]byte, 4096)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096, Buffer: block})
	for i, r := range []*volume.Request{
		{Operation: iomsg.OpFlush},
		{Operation: iomsg.OpFlush},
		{Operation: iomsg.OpWrite, Length: 4096, Buffer: block},
		{Operation: iomsg.OpWrite, Length: 4096, Buffer: block, ForceUnitAccess: true},
		{Operation: iomsg.OpTrim, Length: 4096},
		{Operation: iomsg.OpWriteZeroes, Length: 4096},
	} {
		volumetest.Do(t, queue, r)
		if status.CodeOf(r.Err) != status.IOFailed || !errors.Is(r.Err, unix.EIO) {
			t.Errorf("request %d, %v: %v", i, r.Operation, r.Err)
		}
	}
	do(t, queue, &volume.Request{Operation: iomsg.OpRead, Length: 4096, Buffer: block})
	if now := v.Status(); now.State != volume.Failed || !errors.Is(now.Reason, unix.EIO) ||
		!now.IsReadable || now.Since.Before(opened) {
		t.Errorf("the volume is %+v", now)
	}
	volumetest.CloseQueue(t, queue)
	if err := v.Close(t.Context()); !errors.Is(err, unix.EIO) {
		t.Errorf("Close returned %v after content was lost", err)
	}
	if now := v.Status(); now.State != volume.Closed || now.Since.Before(opened) {
		t.Errorf("in the end the volume is %+v", now)
	}
	for message, want := range map[string]int{
		"volume IO failed": 1, // the flush that noticed
		"flush failed: the volume accepts no more writes until it is reopened": 1,
	} {
		if n := logged.FilterMessage(message).Len(); n != want {
			t.Errorf("%q was logged %d times: %v", message, n, logged.All())
		}
	}
	volumetest.CloseVolume(t, open(t, spec)) // reopened, it works again
}

func TestForcedWriteFailsIfItCannotBeMadeDurable(t *testing.T) {
	v := volumetest.MustOpen(t, openFile(1<<20))
	volume.SetSync(v, func() error { return unix.ENOSPC })
	queue := volumetest.NewQueue(t, v, 1)
	r := volume.Request{Operation: iomsg.OpWrite, ForceUnitAccess: true, Length: 4096,
		Buffer: make([]byte, 4096)}
	volumetest.Do(t, queue, &r)
	if !errors.Is(r.Err, unix.ENOSPC) || !errors.Is(r.Err, status.IOFailed) {
		t.Errorf("write: %v", r.Err)
	}
	volumetest.CloseQueue(t, queue)
	if err := v.Close(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Close returned %v", err)
	}
}

func TestForcedChangesAreDurableWhenTheyComplete(t *testing.T) {
	v := volumetest.MustOpen(t, openFile(1<<20))
	began, goOn := make(chan struct{}), make(chan struct{})
	volume.SetSync(v, func() error {
		began <- struct{}{}
		<-goOn
		return nil
	})
	queue := volumetest.NewQueue(t, v, 1)
	for _, operation := range []iomsg.Operation{iomsg.OpWrite, iomsg.OpTrim, iomsg.OpWriteZeroes} {
		r := volume.Request{Operation: operation, ForceUnitAccess: true, Length: 4096,
			Buffer: make([]byte, 4096)}
		if err := queue.Submit(&r); err != nil {
			t.Fatal(err)
		}
		completed := make([]*volume.Request, 1)
		for syncing := false; !syncing; runtime.Gosched() {
			select {
			case <-began:
				syncing = true
			default:
			}
			if queue.Poll(completed) > 0 {
				t.Fatalf("%v completed before it was durable", operation)
			}
		}
		goOn <- struct{}{}
		volumetest.Await(t, queue, 1)
	}
	volume.SetSync(v, func() error { return nil })
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

// A change may wait for its turn while a flush fails. It must not be carried out after that.
func TestAChangeThatWaitedForAFailedFlushIsRejected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v := open(t, fileSpec(path, 1<<20))
	volume.SetSync(v, func() error { return unix.EIO })
	queue := volumetest.NewQueue(t, v, 1)
	volumetest.Do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
	err := volume.CarryOut(v, &volume.Request{Operation: iomsg.OpWrite, Length: 4096,
		Buffer: bytes.Repeat([]byte{1}, 4096)})
	if !errors.Is(err, unix.EIO) {
		t.Errorf("a write after the failed flush: %v", err)
	}
	if content, err := os.ReadFile(path); err != nil || content[0] != 0 {
		t.Errorf("the file begins with %d (%v)", content[0], err)
	}
	closeFailed(t, v, queue, unix.EIO)
}

func TestATruncationAfterAFailedFlushFailsReadsToo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v := open(t, fileSpec(path, 1<<20))
	volume.SetSync(v, func() error { return unix.EIO })
	queue := volumetest.NewQueue(t, v, 1)
	volumetest.Do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
	first := volume.Request{Operation: iomsg.OpRead, Length: 4096, Buffer: make([]byte, 4096)}
	do(t, queue, &first)
	if err := os.Truncate(path, truncatedSize); err != nil {
		t.Fatal(err)
	}
	last := first
	last.Offset = 1<<20 - 4096
	for _, r := range []*volume.Request{&last, &first} {
		if volumetest.Do(t, queue, r); status.CodeOf(r.Err) != status.IOFailed {
			t.Errorf("a read at %d: %v", r.Offset, r.Err)
		}
	}
	closeFailed(t, v, queue, status.IOFailed)
}

// A flush that waits for another must not complete with it: the earlier one may have begun before
// the writes that the later one has to cover.
func TestFlushIsNotCompletedByASyncThatBeganBeforeIt(t *testing.T) {
	v := volumetest.MustOpen(t, openFile(1<<20))
	began, goOn := make(chan struct{}, 16), make(chan struct{})
	volume.SetSync(v, func() error {
		began <- struct{}{}
		<-goOn
		return nil
	})
	queue := volumetest.NewQueue(t, v, 4)
	var flushes [3]volume.Request
	for i := range flushes {
		flushes[i].Operation = iomsg.OpFlush
		if err := queue.Submit(&flushes[i]); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			<-began
		}
	}
	goOn <- struct{}{}
	if done := volumetest.Await(t, queue, 1); done[0] != &flushes[0] {
		t.Error("the first sync completed another flush than the first")
	}
	<-began
	close(goOn)
	volumetest.Await(t, queue, 2)
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

func TestCloseIsBoundedWhenTheDeviceHangs(t *testing.T) {
	v := volumetest.MustOpen(t, openFile(1<<20))
	goOn := make(chan struct{})
	volume.SetSync(v, func() error { <-goOn; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Close(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, status.TimeOut) {
		t.Errorf("Close returned %v while the device was hanging", err)
	}
	close(goOn)
	volumetest.CloseVolume(t, v)
}

func TestFullFileSystemFailsOnlyThatWrite(t *testing.T) {
	directory := mountTmpfs(t, "size=256k")
	v := open(t, fileSpec(filepath.Join(directory, "volume"), 1<<20))
	queue := volumetest.NewQueue(t, v, 1)
	r := volume.Request{Operation: iomsg.OpWrite, Length: 1 << 20, Buffer: make([]byte, 1<<20)}
	volumetest.Do(t, queue, &r)
	if !errors.Is(r.Err, unix.ENOSPC) || status.CodeOf(r.Err) != status.IOFailed {
		t.Errorf("write: %v", r.Err)
	}
	do(t, queue, &volume.Request{Operation: iomsg.OpTrim, Length: 1 << 20})
	do(t, queue,
		&volume.Request{Operation: iomsg.OpWrite, Length: 4096, Buffer: make([]byte, 4096),
			ForceUnitAccess: true})
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

// Queues of several threads sleep after every few requests, and the pool falls asleep in between,
// each after pauses of random length.
func TestNoWakeUpIsLostBetweenQueuesAndPool(t *testing.T) {
	v := volumetest.MustOpen(t, openFile(1<<20))
	defer volumetest.CloseVolume(t, v)
	volume.SetSync(v, func() error { return nil })
	t.Run("queues", func(t *testing.T) { // returns when all its parallel tests have
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				queue := volumetest.NewQueue(t, v, 4)
				defer volumetest.CloseQueue(t, queue)
				random := rand.New(rand.NewPCG(seed, 0))
				var requests [4]volume.Request
				for range 3000 {
					count := 1 + random.IntN(len(requests))
					for i := range requests[:count] {
						requests[i].Operation = iomsg.OpFlush
						if err := queue.Submit(&requests[i]); err != nil {
							t.Fatal(err)
						}
					}
					for range random.IntN(50) {
						runtime.Gosched()
					}
					volumetest.Await(t, queue, count) // fails if it sleeps too long
				}
			})
		}
	})
}
