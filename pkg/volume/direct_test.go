package volume_test

import (
	"bytes"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestDirectVolumeConforms(t *testing.T) { volumetest.Run(t, openDirect(1<<20)) }

func TestDirectVolumeTakesBuffersWhereverTheyLie(t *testing.T) {
	v := openDirect(1 << 20)(t)
	defer closeVolume(t, v)
	queue := openQueue(t, v, 1)
	defer closeQueue(t, queue)
	content := append(make([]byte, 0, 8193), bytes.Repeat([]byte{1, 2, 3}, 2731)...)
	got := make([]byte, 8193)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Offset: 4096, Length: 8192, Buffer: content[1:8193]})
	do(t, queue, &volume.Request{Operation: iomsg.OpRead, Offset: 4096, Length: 8192, Buffer: got[1:]})
	if !bytes.Equal(got[1:], content[1:8193]) {
		t.Error("what was read is not what was written")
	}
}
