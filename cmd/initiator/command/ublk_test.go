// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/ublk"
)

// The schema describes every field, and documents without the optional ones.
func TestTheStatusOfADeviceIsAsItsSchemaSays(t *testing.T) {
	full := ublkDeviceStatus{Device: "/dev/ublkb0", Volume: "disk", HolderID: "0123456789abcdef",
		Since: time.Now(), Requests: []requestCount{{Command: "read", Error: "EIO", Count: 1}}}
	least := ublkDeviceStatus{Requests: []requestCount{}}
	text, err := json.Marshal(ublkStatus{Schema: ublkStatusSchema, Software: "initiator",
		Devices: []ublkDeviceStatus{full, least}})
	if err != nil {
		t.Fatal(err)
	}
	checkDocument(t, "ublk-status", outcome{stdout: string(text)})
}

// A gateway that takes over a device knows from its cookie whose volume it is.
func TestADeviceKnowsItsVolume(t *testing.T) {
	first, err := newDeviceIdentity()
	if err != nil {
		t.Fatal(err)
	}
	volume, other := client.Info{}, client.Info{}
	volume.UUID[0], other.UUID[0] = 1, 2
	if !first.fits(volume) || !first.fits(other) {
		t.Error("a new device does not fit every volume")
	}
	heir, err := deviceIdentityOf(first.cookie(volume))
	if err != nil {
		t.Fatal(err)
	}
	if !heir.fits(volume) || heir.fits(other) {
		t.Errorf("the volume fits: %v, another one: %v", heir.fits(volume), heir.fits(other))
	}
	if heir.cookie(volume) != first.cookie(volume) {
		t.Error("the cookie changes")
	}
}

func TestADeviceHasANumberOrTakesAFreeOne(t *testing.T) {
	for text, want := range map[string]deviceNumber{"0": 0, "1048575": 1<<20 - 1,
		"auto": ublk.AnyID} {
		var got deviceNumber
		if err := got.Set(text); err != nil || got != want || got.String() != text {
			t.Errorf("%q is %d (%v), error %v", text, got, &got, err)
		}
	}
	for _, text := range []string{"", "-1", "1048576", "ublkb0", "0x1"} {
		var got deviceNumber
		if err := got.Set(text); err == nil {
			t.Errorf("%q is %v", text, &got)
		}
	}
}
