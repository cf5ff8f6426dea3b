// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// TestClientsSeeAVolumeGrow grows a volume by the target and by another program.
func TestClientsSeeAVolumeGrow(t *testing.T) {
	chaintest.Parallel(t)
	path := filepath.Join(t.TempDir(), "content")
	c := chaintest.Start(t, options{
		Spec: volumeName + "=file:" + path + ",size=8MiB",
		Target: func(config *target.Config) {
			config.KeepAlive = controlmsg.KeepAliveConfig{Interval: 10 * time.Millisecond,
				DeadAfter: testkit.Patience}
		},
	})
	v := c.Open(c.Config())
	content, found := bytes.Repeat([]byte{9}, 2*blockSize), make([]byte, 2*blockSize)
	size := int64(volumeSize)
	for _, grow := range []func(bytes int64) error{
		func(bytes int64) error {
			return c.Volumes[volumeName].Volume.Resize(uint64(bytes), false)
		},
		func(bytes int64) error { return os.Truncate(path, bytes) },
	} {
		if _, err := v.WriteAt(content, size-blockSize); !errors.Is(err, status.InvalidValue) {
			t.Errorf("a write across the end: %v", err)
		}
		resized := v.Resized()
		select {
		case <-resized:
			t.Error("the volume is said to have grown before")
		default:
		}
		if err := grow(size + volumeSize); err != nil {
			t.Fatal(err)
		}
		testkit.Receive(t, "the client hears that the volume has grown", resized)
		if got := v.Info().Size; got != uint64(size+volumeSize) || v.Size() != size+volumeSize {
			t.Errorf("the volume has %d bytes, want %d", got, size+volumeSize)
		}
		if _, err := v.WriteAt(content, size-blockSize); err != nil {
			t.Fatal(err)
		}
		if _, err := v.ReadAt(found, size-blockSize); err != nil || !bytes.Equal(found, content) {
			t.Errorf("what was written across the former end: %v", err)
		}
		size += volumeSize
		if n, err := v.ReadAt(found, size-blockSize); n != blockSize || !errors.Is(err, io.EOF) {
			t.Errorf("a read across the end: %d, %v", n, err)
		}
	}
	c.Await("the relay's status has the size",
		func() bool { return c.Relay.Channels()[0].Link.Volume.Size == uint64(size) })
}
