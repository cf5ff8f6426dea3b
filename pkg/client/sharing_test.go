// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TestTheRelayCannotReadTheMemoryOfAReader: nothing that a volume opened for reading has in its
// data memory can reach the volume.
func TestTheRelayCannotReadTheMemoryOfAReader(t *testing.T) {
	r := newFakeRelay(t)
	r.readOnly.Store(true)
	v := r.openWith(client.Config{ReadOnly: true})
	m := r.configured.Load()
	if !m.ReadOnly || m.Export.Access != memory.PCIWrite|memory.RemoteWrite {
		t.Errorf("a reader exports its memory with %+v", m)
	}
	if !v.Info().ReadOnly {
		t.Error("the volume is not described as read-only")
	}
}

func TestOpenFailsIfTheTargetIgnoresHowTheVolumeIsOpened(t *testing.T) {
	for name, config := range map[string]client.Config{
		"exclusive": {Exclusive: true}, "read-only": {ReadOnly: true},
	} {
		r := newFakeRelay(t)
		config.Provider, config.Device = r.provider, emulated.DefaultHostDevice
		_, err := client.Open(context.Background(), config)
		if !errors.Is(err, status.NotSupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSessionsTellTheirOwner(t *testing.T) {
	r := newFakeRelay(t)
	long := client.NewOwner(strings.Repeat("name\n", 100))
	var owners [][16]byte
	for _, owner := range []*client.Owner{nil, nil, long, long} {
		v := r.openWith(client.Config{Owner: owner})
		m := r.configured.Load()
		owners = append(owners, m.Owner)
		if owner == nil && !strings.Contains(m.Client, "(process ") ||
			owner != nil && (len(m.Client) != controlmsg.MaxClientLength ||
				strings.Contains(m.Client, "\n")) {
			t.Errorf("the program calls itself %q", m.Client)
		}
		v.Abort()
	}
	if owners[0] == owners[1] || owners[1] == owners[2] || owners[2] != owners[3] {
		t.Errorf("the owners are %x", owners)
	}
}

func TestDescribeOpensNothing(t *testing.T) {
	r := newFakeRelay(t, func(m *controlmsg.OpenVolumeReply) {
		m.Exclusive, m.Sessions, m.Holder = true, 4, "someone"
	})
	info, err := client.Describe(context.Background(), client.Config{Provider: r.provider,
		Device: emulated.DefaultHostDevice})
	if err != nil || !info.Exclusive || info.Sessions != 4 || info.Holder != "someone" ||
		info.Name != "fake" || r.configured.Load() != nil {
		t.Errorf("described as %+v, %v", info, err)
	}
}
