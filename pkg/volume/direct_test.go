package volume_test

import (
	"bytes"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestDirectVolumeConforms(t *testing.T) { volumetest.Run(t, openDirect(1<<20)) }

func TestDirectVolumeTakesBuffersWhereverTheyLie(t *testing.T) {
	v := openDirect(1 << 20)(t)
	defer closeVolume(t, v)
	lane := openLane(t, v, 1)
	defer closeLane(t, lane)
	content := append(make([]byte, 0, 8193), bytes.Repeat([]byte{1, 2, 3}, 2731)...)
	got := make([]byte, 8193)
	do(t, lane, &volume.Request{Operation: volume.Write, Offset: 4096, Length: 8192, Buffer: content[1:8193]})
	do(t, lane, &volume.Request{Operation: volume.Read, Offset: 4096, Length: 8192, Buffer: got[1:]})
	if !bytes.Equal(got[1:], content[1:8193]) {
		t.Error("what was read is not what was written")
	}
}
