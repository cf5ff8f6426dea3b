// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/internal/controlpb"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func validHello() *Hello {
	return &Hello{Role: RoleRelay, MinVersion: 1, MaxVersion: 1, MaxMessageSize: MinMessageSize}
}

func validVolume() *OpenVolumeReply {
	return &OpenVolumeReply{Volume: "v", Size: 4096, BlockSize: 512, MaxQueues: 1, MaxDepth: 1,
		MaxBufferSize: 512}
}

func validConfiguration() *ConfigureDataPath {
	return &ConfigureDataPath{QueueCount: 1, Depth: 1, BufferSize: 512, Export: Export{Length: 512,
		Descriptor: []byte{1}}}
}

// with returns message after change.
func with[M any](message *M, change func(*M)) *M {
	change(message)
	return message
}

func TestFieldsOutsideTheirLimitsAreRejectedInBothDirections(t *testing.T) {
	unicast := netip.MustParseAddr("192.0.2.1")
	cases := []struct {
		message Message
		text    string // names the field and the value
		code    status.Code
	}{
		{with(validHello(), func(m *Hello) { m.Role = 4 }), "role 4", status.InvalidValue},
		{with(validHello(), func(m *Hello) { m.MinVersion = 0 }), "version range 0 to 1",
			status.InvalidValue},
		{with(validHello(), func(m *Hello) { m.MinVersion = 2 }), "version range 2 to 1",
			status.InvalidValue},
		{with(validHello(), func(m *Hello) { m.MaxMessageSize = 100 }), "max_message_size is 100",
			status.InvalidValue},
		{with(validHello(), func(m *Hello) { m.Software = strings.Repeat("x", 129) }),
			"software has 129", status.TooBig},
		{with(validHello(), func(m *Hello) { m.SilenceLimitMs = 99 }), "silence_limit_ms is 99",
			status.InvalidValue},
		{&HelloReply{MaxMessageSize: MinMessageSize}, "version is 0", status.InvalidValue},
		{&KeepAlive{Question: lease.Question{Noted: make([]uint64, 129)}}, "noted has 129",
			status.TooBig},
		{&KeepAlive{Question: lease.Question{Confirmed: make([]uint64, 257)}}, "confirmed has 257",
			status.TooBig},
		{&KeepAlive{Answer: lease.Answer{Ended: make([]uint64, 129)}}, "ended has 129",
			status.TooBig},
		{with(validConfiguration(), func(m *ConfigureDataPath) {
			m.Answer.Awaited = make([]uint64, 129)
		}), "awaited has 129", status.TooBig},
		{with(validVolume(), func(m *OpenVolumeReply) { m.Sole = strings.Repeat("x", 65) }),
			"sole has 65", status.TooBig},
		{&HelloReply{Version: 1, MaxMessageSize: MinMessageSize, LeaseMs: 60_001},
			"lease_ms is 60001, at most 60000", status.InvalidValue},
		{&OpenVolume{Volume: strings.Repeat("x", 256)}, "volume has 256", status.TooBig},
		{&OpenVolume{Volume: "a\x00b"}, `volume "a\x00b"`, status.InvalidValue},
		{with(validVolume(), func(m *OpenVolumeReply) { m.BlockSize = 0 }), "block_size is 0",
			status.InvalidValue},
		{with(validVolume(), func(m *OpenVolumeReply) { m.BlockSize = 513 }), "block_size is 513",
			status.InvalidValue},
		{with(validVolume(), func(m *OpenVolumeReply) { m.BlockSize = 1 << 25 }),
			"block_size is 33554432", status.TooBig},
		{with(validVolume(), func(m *OpenVolumeReply) { m.Size = 513 }), "size is 513",
			status.InvalidValue},
		{with(validVolume(), func(m *OpenVolumeReply) { m.MaxQueues = 1025 }), "max_queues is 1025",
			status.TooBig},
		{with(validVolume(), func(m *OpenVolumeReply) { m.MaxDepth = 0 }), "max_depth is 0",
			status.InvalidValue},
		{with(validVolume(), func(m *OpenVolumeReply) { m.MaxBufferSize = 0 }),
			"max_buffer_size is 0", status.InvalidValue},
		{with(validVolume(), func(m *OpenVolumeReply) { m.Transport = strings.Repeat("x", 33) }),
			"transport has 33", status.TooBig},
		{with(validConfiguration(), func(m *ConfigureDataPath) { m.QueueCount = 0 }),
			"queue_count is 0", status.InvalidValue},
		{with(validConfiguration(), func(m *ConfigureDataPath) { m.QueueCount = 5000 }),
			"queue_count is 5000", status.TooBig},
		{with(validConfiguration(), func(m *ConfigureDataPath) { m.Depth = 1<<16 + 1 }),
			"depth is 65537", status.TooBig},
		{with(validConfiguration(), func(m *ConfigureDataPath) { m.BufferSize = 0 }),
			"buffer_size is 0", status.InvalidValue},
		{with(validConfiguration(), func(m *ConfigureDataPath) { m.Export.Access = 1 << 9 }),
			"access 0x200", status.InvalidValue},
		{with(validConfiguration(), func(m *ConfigureDataPath) { m.Export.Length = 0 }), "length 0",
			status.InvalidValue},
		{with(validConfiguration(), func(m *ConfigureDataPath) { m.Export.Descriptor = nil }),
			"either", status.InvalidValue},
		{with(validConfiguration(), func(m *ConfigureDataPath) {
			m.Export.Descriptor = make([]byte,
				1025)
		}), "1025 bytes", status.TooBig},
		{with(validConfiguration(), func(m *ConfigureDataPath) {
			m.Export.Descriptor, m.Export.RDMA = nil, &RDMAExport{Base: math.MaxUint64}
		}), "address space", status.InvalidValue},
		{&CreateRDMAConnection{Queue: 1024, Role: iomsg.DataConnection, Source: unicast},
			"queue is 1024", status.TooBig},
		{&CreateRDMAConnection{Role: iomsg.ConnectionRoleCount, Source: unicast}, "connection role",
			status.InvalidValue},
		{&CreateRDMAConnection{Role: iomsg.DataConnection, Source: netip.IPv4Unspecified()},
			`source "0.0.0.0"`, status.InvalidValue},
		{&CreateRDMAConnectionReply{Address: netip.AddrPortFrom(unicast, 0)}, "port is 0",
			status.InvalidValue},
		{&CreateRDMAConnectionReply{Address: netip.AddrPortFrom(unicast, 1),
			Staging: &rdma.RemoteMemory{Base: 1}}, "staging of 0 bytes", status.InvalidValue},
		{&CreateRDMAConnectionReply{Address: netip.AddrPortFrom(unicast, 1),
			Staging: &rdma.RemoteMemory{Base: math.MaxUint64, Length: 2}}, "wraps",
			status.InvalidValue},
		{&StartDataPathConnections{ConsumerIDs: []uint32{5, 0}}, "consumer id of queue 1 is 0",
			status.InvalidValue},
		{&StartDataPathConnectionsReply{ConsumerIDs: []uint32{5, 6, 5}}, "consumer id 5",
			status.InvalidValue},
		{&StartDataPathConnections{ConsumerIDs: make([]uint32, 1025)}, "1025 consumer ids",
			status.TooBig},
		{&Error{Text: "nothing wrong"}, "code 0", status.InvalidValue},
	}
	for _, c := range cases {
		t.Run(c.message.Kind().String()+" "+c.text, func(t *testing.T) {
			_, err := Encode(&Envelope{Message: c.message})
			check(t, "Encode", err, c.code, c.text)
			_, err = Decode(marshal(t, toWire(&Envelope{Message: c.message})))
			check(t, "Decode", err, c.code, c.text)
		})
	}
}

func TestAPostponementReachesThePeerOfThePeer(t *testing.T) {
	for _, c := range []struct{ after, told time.Duration }{
		{1, time.Millisecond}, {1500 * time.Millisecond, 1500 * time.Millisecond},
		{math.MaxInt64 - time.Second, time.Minute}, {0, 0},
	} {
		err := Postpone(c.after, "%d sessions", 9)
		if got := RetryAfter(err); got != c.told || !errors.Is(err, status.Again) {
			t.Errorf("a postponement by %v asks for %v: %v", c.after, got, err)
		}
		first := report(fmt.Errorf("admit: %w", err), PhaseHello)
		second := report(fmt.Errorf("target: %w", first), PhaseOpenVolume)
		if got := RetryAfter(second); got != c.told || second.Phase != PhaseHello {
			t.Errorf("passed on, a postponement by %v asks for %v in phase %v", c.after, got,
				second.Phase)
		}
	}
	e := report(Postpone(time.Second, "full"), PhaseHello)
	if e.Text != "full" || e.RetryAfterMs != 1000 {
		t.Errorf("the answer is %+v", e)
	}
	if got := RetryAfter(status.Again); got != 0 {
		t.Errorf("AGAIN without a time asks for %v", got)
	}
}

func TestTheCodeOfAnErrorThatWasPassedOnIsPrintedOnce(t *testing.T) {
	err := status.Errorf(status.InUse, "volume %q is open", "disk")
	for _, hop := range []string{"target", "relay"} {
		err = fmt.Errorf("%s: %w", hop, report(err, PhaseOpenVolume))
	}
	const want = "relay: the other side reports at step open_volume: " +
		"target: the other side reports at step open_volume: volume \"disk\" is open [IN_USE]"
	if err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
}

func check(t *testing.T, operation string, err error, code status.Code, text string) {
	t.Helper()
	if !errors.Is(err, code) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s fails with %v, want %q and the code %v", operation, err, text, code)
	}
}

func TestFieldsThatDoNotFitTheirTypesAreRejected(t *testing.T) {
	token := make([]byte, 16)
	cases := []struct {
		name string
		wire controlpb.Envelope
	}{
		{"role beyond a byte",
			controlpb.Envelope{
				Message: &controlpb.Envelope_Hello{Hello: &controlpb.Hello{Role: 257}},
			}},
		{"negative role",
			controlpb.Envelope{
				Message: &controlpb.Envelope_Hello{Hello: &controlpb.Hello{Role: -1}},
			}},
		{"uuid of 15 bytes", controlpb.Envelope{Message: &controlpb.Envelope_OpenVolumeReply{
			OpenVolumeReply: &controlpb.OpenVolumeReply{Uuid: make([]byte, 15)}}}},
		{"relay instance of 15 bytes", controlpb.Envelope{Message: &controlpb.Envelope_KeepAlive{
			KeepAlive: &controlpb.KeepAlive{RelayInstance: make([]byte, 15)}}}},
		{"client instance missing",
			controlpb.Envelope{Message: &controlpb.Envelope_ConfigureDataPath{
				ConfigureDataPath: &controlpb.ConfigureDataPath{}}}},
		{"source of 5 bytes", controlpb.Envelope{Message: &controlpb.Envelope_CreateRdmaConnection{
			CreateRdmaConnection: &controlpb.CreateRdmaConnection{Role: 1,
				Source: make([]byte, 5)}}}},
		{"port beyond 16 bits",
			controlpb.Envelope{Message: &controlpb.Envelope_CreateRdmaConnectionReply{
				CreateRdmaConnectionReply: &controlpb.CreateRdmaConnectionReply{Address: []byte{192,
					0,
					2, 1}, Port: 65537, Token: token}}}},
		{"token of 17 bytes",
			controlpb.Envelope{Message: &controlpb.Envelope_CreateRdmaConnectionReply{
				CreateRdmaConnectionReply: &controlpb.CreateRdmaConnectionReply{Address: []byte{192,
					0,
					2, 1}, Port: 1, Token: append(token, 0)}}}},
	}
	for i := range cases {
		t.Run(cases[i].name, func(t *testing.T) {
			_, err := Decode(marshal(t, &cases[i].wire))
			if !errors.Is(err, status.InvalidValue) {
				t.Errorf("Decode fails with %v, want the code %v", err, status.InvalidValue)
			}
		})
	}
}

func TestAccessRightsHaveFixedBitsOnTheWire(t *testing.T) {
	rights := []memory.Access{memory.LocalWrite, memory.RemoteRead, memory.RemoteWrite,
		memory.PCIRead, memory.PCIWrite}
	for bit, right := range rights {
		if right != 1<<bit {
			t.Errorf("right %d is %#x, docs/dev/protocol.md says bit %d", bit, uint32(right), bit)
		}
	}
}

func TestTheHighestCommonVersionIsNegotiated(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		bound := rapid.Uint32Range(1, 5)
		ownMin, peerMin := bound.Draw(t, "ownMin"), bound.Draw(t, "peerMin")
		ownMax, peerMax := ownMin+bound.Draw(t, "own span")-1, peerMin+bound.Draw(t, "peer span")-1
		highest := uint32(0)
		for v := ownMin; v <= ownMax; v++ {
			if v >= peerMin && v <= peerMax {
				highest = v
			}
		}
		got, err := negotiateVersion(ownMin, ownMax, peerMin, peerMax)
		if got != highest || (err != nil) != (highest == 0) {
			t.Fatalf("picked %d (%v), the highest common version is %d", got, err, highest)
		}
		if err != nil && !errors.Is(err, status.UnsupportedVersion) {
			t.Fatalf("code of %v", err)
		}
	})
}
