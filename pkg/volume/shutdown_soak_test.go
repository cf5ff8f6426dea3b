// SPDX-License-Identifier: Apache-2.0

//go:build soak

package volume_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

const (
	soakBlocks  = 16384
	soakWriters = 8
)

// File systems shut down under load, at random moments. Every block that a forced write or a flush
// has reported as durable must be there when the file system is mounted again.
func TestDurableBlocksSurviveTheShutdownOfTheFileSystem(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		how        int
	}{
		{"ext4 writes its log", "ext4", writeLog},
		{"ext4 discards its log", "ext4", discardLog},
		{"XFS discards its log", "xfs", discardLog},
	} {
		t.Run(c.name, func(t *testing.T) {
			device, directory := loopDevice(t, 512<<20), t.TempDir()
			random := seedtest.Random(t, 0)
			durable, lost := 0, 0
			for range 100 {
				d, l := shutDownUnderLoad(t, c.kind, device, directory, c.how, random)
				durable, lost = durable+d, lost+l
			}
			t.Logf("%d durable blocks, %d lost", durable, lost)
			if lost > 0 || durable == 0 {
				t.Errorf("%d of %d durable blocks were lost", lost, durable)
			}
		})
	}
}

// shutDownUnderLoad runs one round, and returns how many blocks were durable and how many of these
// were lost.
func shutDownUnderLoad(t *testing.T, kind, device, directory string, how int,
	random *rand.Rand) (durable, lost int) {
	newFileSystem(t, kind, device)
	unmount := mountDevice(t, kind, device, directory)
	path := filepath.Join(directory, "volume")
	v := open(t, fileSpec(path, soakBlocks*4096))
	var written [soakBlocks]uint64 // the newest durable version of each block
	var writers sync.WaitGroup
	var completed atomic.Int64
	for writer := range soakWriters {
		blocks := rand.New(rand.NewPCG(random.Uint64(), 0))
		writers.Go(func() { writeUntilFailure(t, v, writer, blocks, written[:], &completed) })
	}
	// Some blocks are durable, and more are on their way.
	testkit.Eventually(t, "some writes are complete", func() bool { return completed.Load() > 20 })
	time.Sleep(time.Duration(random.Int64N(int64(60 * time.Millisecond))))
	shutDown(t, directory, how)
	writers.Wait()
	_ = v.Close(t.Context()) // fails
	unmount()

	unmount = mountDevice(t, kind, device, directory)
	defer unmount()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for block, version := range written {
		if version == 0 {
			continue
		}
		durable++
		if binary.NativeEndian.Uint64(content[block*4096:]) < version {
			lost++
		}
	}
	return durable, lost
}

// writeUntilFailure writes blocks of its own, each time with a higher version, and makes each write
// durable: by force if writer is odd, else by a flush.
func writeUntilFailure(t *testing.T, v volume.Volume, writer int, random *rand.Rand,
	written []uint64, completed *atomic.Int64) {
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	buffer := make([]byte, 4096)
	for version := uint64(1); ; version++ {
		block := random.IntN(soakBlocks/soakWriters)*soakWriters + writer
		binary.NativeEndian.PutUint64(buffer, version)
		r := volume.Request{Operation: iomsg.OpWrite, Offset: uint64(block) * 4096, Length: 4096,
			Buffer: buffer, ForceUnitAccess: writer%2 == 1}
		volumetest.Do(t, queue, &r)
		if r.Err == nil && !r.ForceUnitAccess {
			r = volume.Request{Operation: iomsg.OpFlush}
			volumetest.Do(t, queue, &r)
		}
		if r.Err != nil {
			return
		}
		written[block] = version
		completed.Add(1)
	}
}
