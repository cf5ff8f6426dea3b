package client

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func TestAReadOnlyVolumeOffersNoChanges(t *testing.T) {
	reply := &controlmsg.OpenVolumeReply{
		Capabilities: uint32(volume.CanTrim | volume.CanWriteZeroes | volume.CanReportExtents)}
	for _, readOnly := range []bool{false, true} {
		reply.ReadOnly = readOnly
		if info := infoOf(reply); info.CanTrim == readOnly || info.CanWriteZeroes == readOnly ||
			!info.CanReportExtents {
			t.Errorf("read-only %v: %+v", readOnly, info)
		}
	}
}
