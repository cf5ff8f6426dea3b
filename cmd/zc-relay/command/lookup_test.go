// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
)

func TestAHostThatCannotBeLookedUpKeepsItsAddresses(t *testing.T) {
	var warned []netip.Addr
	l := newLookups(zap.NewNop(), func(a netip.Addr) { warned = append(warned, a) })
	failure := errors.New("no DNS")
	var answer []netip.AddrPort
	l.host = func(context.Context, config.Host) ([]netip.AddrPort, error) {
		if answer == nil {
			return nil, failure
		}
		return answer, nil
	}
	h := config.Host{Name: "storage.example.com", Port: 7470}
	if got, err := l.of(t.Context(), h); !errors.Is(err, failure) {
		t.Errorf("an unknown host has the addresses %v, error %v", got, err)
	}
	first := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:7470")}
	second := append(first, netip.MustParseAddrPort("10.0.0.6:7470"))
	for _, c := range []struct{ answer, want []netip.AddrPort }{
		{first, first}, {nil, first}, {second, second}, {nil, second},
	} {
		answer = c.answer
		if got, err := l.of(t.Context(), h); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("after %v, the addresses are %v, error %v", c.answer, got, err)
		}
	}
	if len(warned) != 2 {
		t.Errorf("found %v", warned)
	}
}

func TestChannelsWithNamesAreSettledWhenTheyOpen(t *testing.T) {
	c := config.DefaultRelay()
	c.Channels = []config.Channel{
		{Target: config.Host{Address: netip.MustParseAddr("10.0.0.5"), Port: 1},
			Access: config.Access{Users: []string{"1000"}}},
		{Target: config.Host{Name: "storage.invalid", Port: 1}},
		{Target: config.Host{Address: netip.MustParseAddr("10.0.0.5"), Port: 1},
			Access: config.Access{Users: []string{"no-such-user"}}},
	}
	s := relaySettings(c, newLookups(zap.NewNop(), func(netip.Addr) {}))
	for i, isSettled := range []bool{true, false, false} {
		if got := s.Channels[i].LookUp == nil && len(s.Channels[i].Targets) == 1; got != isSettled {
			t.Errorf("channel %d: %+v", i, s.Channels[i])
		}
	}
	if err := s.Channels[2].LookUp(t.Context(), &s.Channels[2]); err == nil {
		t.Error("a user who does not exist was found")
	}
}
