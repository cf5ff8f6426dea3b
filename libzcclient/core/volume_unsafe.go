// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

// #include "core.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The library has a place for each queue that the configuration allows.
var _ [0]struct{} = [maxQueues - C.ZC_CORE_QUEUES_PER_VOLUME]struct{}{}

// volumes are the open volumes by their numbers, which the library chooses. It also sees to it that
// only open ones are used, and each queue by one thread.
var volumes [C.ZC_CORE_VOLUMES]atomic.Pointer[volume]

type volume struct {
	*client.Volume
	queues []*queue
}

// openVolume opens a volume under a number that is free.
func openVolume(number uint32, description string) (*volume, error) {
	c, err := parse(description)
	if err != nil {
		return nil, fmt.Errorf("open a volume: %w", err)
	}
	opened, err := client.Open(context.Background(), c.client)
	if err != nil {
		return nil, err
	}
	reserveProcessors(c.client.Queues)
	v := &volume{Volume: opened}
	for i := range c.client.Queues {
		q, err := newQueue(opened, i, c.spinTime)
		if err != nil {
			return nil, errors.Join(err, v.close())
		}
		v.queues = append(v.queues, q)
	}
	volumes[number].Store(v)
	return v, nil
}

// reserveProcessors lets the threads of all queues run Go at the same time, and the background
// goroutines beside them.
func reserveProcessors(queues int) {
	for i := range volumes {
		if v := volumes[i].Load(); v != nil {
			queues += len(v.queues)
		}
	}
	if wanted := queues + 2; runtime.GOMAXPROCS(0) < wanted {
		runtime.GOMAXPROCS(wanted)
	}
}

// closeVolume closes a volume, whose number is then free.
func closeVolume(number uint32) error { return volumes[number].Swap(nil).close() }

func (v *volume) close() error {
	var errs []error
	for _, q := range v.queues {
		errs = append(errs, q.close())
	}
	return errors.Join(append(errs, v.Close(context.Background()))...)
}

// queueAt returns a queue by its number among those of all volumes.
func queueAt(number uint32) *queue {
	return volumes[number/maxQueues].Load().queues[number%maxQueues]
}

// codeOf returns the code of an error, and its error number, 0 if only the code has one.
func codeOf(err error) (code, number int32) {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		number = int32(errno)
	}
	for _, special := range []struct {
		err  error
		code int32
	}{
		{client.ErrWritesLost, C.ZC_WRITES_LOST},
		{client.ErrMemoryReplaced, C.ZC_MEMORY_REPLACED},
		{client.ErrPreempted, C.ZC_PREEMPTED},
		{client.ErrAnotherVolume, C.ZC_ANOTHER_VOLUME},
		{client.ErrClosed, C.ZC_CLOSED},
	} {
		if errors.Is(err, special.err) {
			return special.code, number
		}
	}
	return -int32(status.CodeOf(err)), number
}
