// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

func TestAVolumeOpenedForReadingCannotBeChanged(t *testing.T) {
	chaintest.Parallel(t)
	for _, isolated := range []relay.Isolation{relay.Direct, relay.Staged} {
		c := chaintest.Start(t, options{
			Channel: func(c *relay.ChannelConfig) { c.Isolation = isolated }})
		writer := c.Open(c.Config())
		content := chaintest.RandomBytes(3*blockSize, 0)
		if _, err := writer.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		config := c.Config()
		config.ReadOnly = true
		reader := c.Open(config)
		if i := reader.Info(); !i.ReadOnly || i.CanTrim || i.CanWriteZeroes || i.CanFUA ||
			writer.Info().ReadOnly {
			t.Errorf("%v: the reader's volume is described as %+v", isolated, reader.Info())
		}
		for name, change := range map[string]func() error{
			"write":        func() error { _, err := reader.WriteAt(make([]byte, blockSize), 0); return err },
			"write a part": func() error { _, err := reader.WriteAt([]byte{1}, 7); return err },
			"trim":         func() error { return reader.Trim(0, blockSize) },
			"write zeroes": func() error { return reader.WriteZeroes(0, blockSize) },
			"punch a hole": func() error { return reader.PunchHole(0, blockSize) },
		} {
			if err := change(); !errors.Is(err, status.NotPermitted) ||
				!strings.Contains(err.Error(), fmt.Sprintf("of volume %q: the volume is read-only",
					volumeName)) {
				t.Errorf("%v: %s: %v", isolated, name, err)
			}
		}
		if err := reader.Flush(); err != nil {
			t.Errorf("%v: flush: %v", isolated, err)
		}
		got := make([]byte, len(content))
		if _, err := reader.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%v: the content has changed (%v)", isolated, err)
		}
	}
}

func TestOneClientAtATimeWritesToAnExclusiveVolume(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{Spec: volumeName + "=memory:8MiB,exclusive"})
	first, err := client.Open(c.Context(), c.Config())
	if err != nil {
		t.Fatal(err)
	}
	if !first.Info().Exclusive {
		t.Errorf("the volume is described as %+v", first.Info())
	}
	if _, err := client.Open(c.Context(), c.Config()); !errors.Is(err, status.InUse) ||
		!strings.Contains(err.Error(), "(process ") {
		t.Errorf("second client: %v", err)
	}
	config := c.Config()
	config.ReadOnly = true
	reader, err := client.Open(c.Context(), config)
	if err != nil {
		t.Fatalf("a client that only reads: %v", err)
	}
	if _, err := reader.ReadAt(make([]byte, blockSize), 0); err != nil {
		t.Errorf("read beside the owner: %v", err)
	}
	if err := reader.Close(c.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := client.Describe(c.Context(), c.Config())
	if err != nil || !info.Exclusive || info.Sessions != 1 || info.Size != volumeSize ||
		!strings.Contains(info.Holder, "(process ") {
		t.Errorf("the volume is described as %+v, %v", info, err)
	}
	if err := first.Close(c.Context()); err != nil {
		t.Fatal(err)
	}
	c.Open(c.Config())
}

// TestAnExclusiveVolumeStaysWithItsClient loses the session again and again.
func TestAnExclusiveVolumeStaysWithItsClient(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.New(t)
	c.StartTarget(options{Spec: volumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB"},
		c.Loopback)
	t.Cleanup(func() { c.StopTarget() })
	c.StartRelay(options{})
	t.Cleanup(func() { c.StopRelay() })
	config := c.Config()
	config.Exclusive, config.Reconnect = true, chaintest.Reconnecting()
	v := c.Open(config)
	for range 5 {
		before := v.Reconnections().Count
		c.StopRelay()
		c.StartRelay(options{})
		c.Await("the volume has been reopened", func() bool {
			return v.Reconnections().Count > before
		})
		if !v.Info().Exclusive {
			t.Fatalf("the reopened volume is described as %+v", v.Info())
		}
		if _, err := client.Open(c.Context(), c.Config()); !errors.Is(err, status.InUse) {
			t.Errorf("another client: %v", err)
		}
	}
}
