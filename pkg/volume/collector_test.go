// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// collectingDriver ends requests on threads of its own, which only count them and ring.
type collectingDriver struct {
	guardedDriver
	refusal error
	closed  atomic.Int32
}

type collection struct {
	driver *collectingDriver
	ring   func()
	ended  chan *volume.Request
	armed  atomic.Bool
}

func (d *collectingDriver) NewCollection(doorbell int) (volume.Collection, error) {
	if d.refusal != nil {
		return nil, d.refusal
	}
	return &collection{driver: d, ended: make(chan *volume.Request, 8),
		ring: func() { _, _ = unix.Write(doorbell, binary.NativeEndian.AppendUint64(nil, 1)) }}, nil
}

func (d *collectingDriver) Submit(r *volume.Request) {
	c := r.Collection().(*collection)
	go func() {
		c.ended <- r
		if c.armed.CompareAndSwap(true, false) {
			c.ring()
		}
	}()
}

func (c *collection) Collect() {
	for len(c.ended) > 0 {
		(<-c.ended).Complete(nil)
	}
}

func (c *collection) Arm() bool {
	c.armed.Store(true)
	if len(c.ended) == 0 {
		return true
	}
	c.armed.Store(false)
	return false
}

func (c *collection) Disarm() { c.armed.Store(false) }
func (c *collection) Close()  { c.driver.closed.Add(1) }

func TestAQueueCollectsWhatEndsElsewhere(t *testing.T) {
	d := &collectingDriver{}
	v := volume.NewDriven(&volume.Spec{Name: "disk", BlockSize: 4096, Logger: zap.NewNop()},
		volume.Info{Name: "disk", Size: 1 << 20, BlockSize: 4096}, d)
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 8)
	requests := make([]volume.Request, 8)
	for range 200 {
		for i := range requests {
			requests[i] = volume.Request{Operation: iomsg.OpRead, Length: 4096,
				Buffer: make([]byte, 4096)}
			if err := queue.Submit(&requests[i]); err != nil {
				t.Fatal(err)
			}
		}
		volumetest.Await(t, queue, len(requests)) // sleeps
	}
	volumetest.CloseQueue(t, queue)
	if d.closed.Load() != 1 {
		t.Error("the queue did not close its collection")
	}
	d.refusal = errors.New("no memory")
	if _, err := v.NewQueue(8); !errors.Is(err, d.refusal) {
		t.Errorf("opening a queue without a collection: %v", err)
	}
}
