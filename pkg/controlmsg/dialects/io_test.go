// SPDX-License-Identifier: Apache-2.0

package dialects_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// What a relay of the applications passes on to their target is what ours makes of the request that
// it has translated.
func TestTargetsGetTheRequestsOfTheApplications(t *testing.T) {
	requests := 0
	for _, name := range names(t, "io") {
		v := versionsOf(name)[0]
		if !strings.HasSuffix(name, "_request") {
			continue
		}
		requests++
		want := golden(t, name)
		got := bytes.Clone(want)
		dialects.NewInitiatorTranslator(v, base).FromClient(got)
		iomsg.StampTag(got, 3, 4)
		var m iomsg.Message
		iomsg.Decode(got, &m)
		translator := dialects.NewTargetTranslator(v, base)
		if !translator.CanCarry(m.Type, m.RequesterOffset, m.StorageOffset) {
			t.Errorf("%s cannot be carried", name)
			continue
		}
		translator.ToTarget(got)
		used := 40 // bytes that the version has
		if v == dialects.DOCA2_10 {
			used = 32
		}
		if !bytes.Equal(got[:used], want[:used]) {
			t.Errorf("%s became %x, want %x", name, got[:used], want[:used])
		}
		var tagged iomsg.Message
		if iomsg.Decode(got, &tagged); tagged.Slot != 3 || tagged.Generation != 4 {
			t.Errorf("%s lost its tag: %+v", name, tagged)
		}
	}
	if requests != 8 {
		t.Errorf("%d requests were translated", requests)
	}
}

func TestWhatATargetCannotCarryIsTold(t *testing.T) {
	for _, c := range []struct {
		message iomsg.Message
		v2_10   bool
		v3_0    bool
		v3_2    bool
	}{
		{iomsg.Message{Type: iomsg.Read, RequesterOffset: 8, StorageOffset: 8}, true, true,
			true},
		{iomsg.Message{Type: iomsg.Write, RequesterOffset: math.MaxUint32 + 8, StorageOffset: 8},
			false, true, true},
		{iomsg.Message{Type: iomsg.Write, RequesterOffset: math.MaxUint32 + 9, StorageOffset: 8},
			false, false, true},
		{iomsg.Message{Type: iomsg.Read, RequesterOffset: 7, StorageOffset: 8}, false, false,
			true},
		{iomsg.Message{Type: iomsg.Flush}, false, false, false},
		{iomsg.Message{Type: iomsg.Trim}, false, false, false},
		{iomsg.Message{Type: iomsg.WriteZeroes}, false, false, false},
		{iomsg.Message{Type: iomsg.Extents}, false, false, false},
	} {
		for v, want := range map[dialects.Version]bool{
			dialects.DOCA2_10: c.v2_10, dialects.DOCA3_0: c.v3_0,
			dialects.DOCA3_1: c.v3_2, dialects.DOCA3_2: c.v3_2,
		} {
			m := &c.message
			got := dialects.NewTargetTranslator(v, base).CanCarry(m.Type, m.RequesterOffset,
				m.StorageOffset)
			if got != want {
				t.Errorf("%v can carry %+v: %v", v, m, got)
			}
		}
	}
}
