// SPDX-License-Identifier: Apache-2.0

package client

import (
	"math"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func TestAReadOnlyVolumeOffersNoChanges(t *testing.T) {
	reply := &controlmsg.OpenVolumeReply{
		Capabilities: uint32(volume.CanTrim | volume.CanWriteZeroes | volume.CanFUA |
			volume.CanReportExtents)}
	for _, readOnly := range []bool{false, true} {
		reply.ReadOnly = readOnly
		if info := infoOf(reply); info.CanTrim == readOnly || info.CanWriteZeroes == readOnly ||
			info.CanFUA == readOnly || !info.CanReportExtents {
			t.Errorf("read-only %v: %+v", readOnly, info)
		}
	}
}

func TestNoVolumeIsTooLargeForPackageIO(t *testing.T) {
	agreed := &terms{config: Config{Queues: 1, Depth: 1, BufferSize: 512, Logger: zap.NewNop()}}
	reply := &controlmsg.OpenVolumeReply{BlockSize: 512, MaxQueues: 1, MaxDepth: 1,
		MaxBufferSize: 512}
	const largest = math.MaxInt64 &^ 511
	for size, want := range map[uint64]status.Code{
		largest: status.Success, 1 << 63: status.Unexpected,
	} {
		info := infoOf(reply)
		if reply.Size = size; status.CodeOf(agreed.negotiate(1, &info, reply)) != want {
			t.Errorf("a volume of %d bytes is accepted, or not", size)
		}
	}
	agreed.size.Store(largest)
	if agreed.grow(1 << 63); agreed.size.Load() != largest {
		t.Errorf("a volume has grown to %d bytes", agreed.size.Load())
	}
}
