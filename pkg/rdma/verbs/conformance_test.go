// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// devicesVariable names an environment variable that lists the devices to test on: NAME=ADDRESS,
// separated by commas. test/verbs/guest.sh sets it in the VM.
const devicesVariable = "ZC_RELAY_VERBS_DEVICES"

// testDevices returns the addresses of the devices to test on, by name.
func testDevices(t testing.TB) map[string]netip.Addr {
	t.Helper()
	list := os.Getenv(devicesVariable)
	if list == "" {
		t.Skipf("needs RDMA devices: run test/verbs/run.sh, or set %s", devicesVariable)
	}
	devices := map[string]netip.Addr{}
	for _, item := range strings.Split(list, ",") {
		name, address, _ := strings.Cut(item, "=")
		devices[name] = netip.MustParseAddr(address)
	}
	return devices
}

// missing holds the features that the software devices lack, by transport, and why.
var missing = map[string]map[rdmatest.Feature]string{
	"roce": {
		rdmatest.ReceiverNotReady:   "RoCE repeats the Send, and does not tell the receiver",
		rdmatest.ExactPrivateData:   "InfiniBand's connection manager pads it with zeros",
		rdmatest.LengthStatus:       "rxe reports an overlong message as IBV_WC_LOC_QP_OP_ERR",
		rdmatest.AnswersNeedPolling: "the device responds",
	},
	"iwarp": {
		rdmatest.OrderlyClose:       "siw fails its queue pair even after an orderly close",
		rdmatest.RemoteReadRight:    "siw does not check the right to read remotely",
		rdmatest.AnswersNeedPolling: "the device responds",
	},
}

func TestConformance(t *testing.T) {
	for name, address := range testDevices(t) {
		t.Run(name, func(t *testing.T) {
			provider, err := verbs.New(verbs.Options{Device: name})
			if err != nil {
				t.Fatal(err)
			}
			device, err := provider.Open(address)
			if err != nil {
				t.Fatal(err)
			}
			transport := device.Capabilities().Transport
			if err := device.Close(); err != nil {
				t.Fatal(err)
			}
			rdmatest.Run(t, rdmatest.Config{
				Provider: provider, Address: address, Missing: missing[transport],
			})
		})
	}
}

// iwarpDevices returns the devices to test on whose transport is iWARP.
func iwarpDevices(t *testing.T) map[string]netip.Addr {
	t.Helper()
	devices := testDevices(t)
	for name, address := range devices {
		capabilities, err := open(t, verbs.Options{Device: name}, address)
		must(t, err)
		if capabilities.Transport != "iwarp" {
			delete(devices, name)
		}
	}
	return devices
}

func TestDeviceInteroperatesWithProviderIWARP(t *testing.T) {
	for name, address := range iwarpDevices(t) {
		device, err := verbs.New(verbs.Options{Device: name})
		must(t, err)
		for _, crc := range []bool{false, true} {
			userSpace := iwarp.New(iwarp.Options{CRC: crc})
			for _, direction := range []struct {
				initiator, responder rdma.Provider
				victimChecksReads    bool // the side whose memory is read checks the right
			}{
				{userSpace, device, false},
				{device, userSpace, true},
			} {
				name := fmt.Sprintf("%s/%s connects, CRC %t", name, direction.initiator.Name(), crc)
				t.Run(name, func(t *testing.T) {
					lacks := maps.Clone(missing["iwarp"])
					if direction.victimChecksReads {
						delete(lacks, rdmatest.RemoteReadRight)
					}
					rdmatest.Run(t, rdmatest.Config{
						Provider:  direction.initiator,
						Responder: direction.responder,
						Address:   address,
						Missing:   lacks,
					})
				})
			}
		}
	}
}

// frame holds the fields of an untagged FPDU without payload (RFC 5040, 5041, 5044), on a
// connection without CRCs.
type frame struct {
	ddp, rdmap      byte // flags and version; version and opcode
	queue, sequence uint32
}

func (f frame) bytes() []byte {
	const header = 18
	b := binary.BigEndian.AppendUint16(nil, header)
	b = append(b, f.ddp, f.rdmap, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, f.queue)
	b = binary.BigEndian.AppendUint32(b, f.sequence)
	b = binary.BigEndian.AppendUint32(b, 0)    // message offset
	return binary.BigEndian.AppendUint32(b, 0) // unused CRC field
}

func TestProtocolViolationsEndTheConnection(t *testing.T) {
	for name, address := range iwarpDevices(t) {
		for violation, f := range map[string]frame{ // 0x43 is a Send
			"unknown opcode":            {0x41, 0x4f, 0, 1},
			"DDP version":               {0x42, 0x43, 0, 1},
			"RDMAP version":             {0x41, 0x83, 0, 1},
			"queue number":              {0x41, 0x43, 7, 1},
			"sequence number":           {0x41, 0x43, 0, 9},
			"unsolicited Read Response": {0xc1, 0x42, 0, 1},
		} {
			t.Run(name+"/"+violation, func(t *testing.T) {
				violate(t, verbs.Options{Device: name}, address, f)
			})
		}
	}
}

// violate sends a frame to a device over a hand-made connection, and checks that the device ends
// the connection and leaves memory alone.
func violate(t *testing.T, options verbs.Options, address netip.Addr, f frame) {
	provider, err := verbs.New(options)
	must(t, err)
	device, err := provider.Open(address)
	must(t, err)
	t.Cleanup(func() { must(t, device.Close()) })
	l := &link{t: t, device: device}
	victim := l.newSide()
	victim.bytes[0] = 0xa5
	stream := l.acceptStream(address, victim)
	defer stream.Close()
	must(t, stream.SetReadDeadline(time.Now().Add(testkit.Patience)))
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, stream) // at most a Terminate
		ended <- err
	}()
	// siw ignores what arrives before it has attached the stream to the queue pair, until more
	// arrives.
	for sending := true; sending; {
		_, _ = stream.Write(f.bytes())
		select {
		case err := <-ended:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the device keeps the stream open")
			}
			sending = false
		case <-time.After(200 * time.Millisecond):
		}
	}
	victim.awaitEnd(t)
	if victim.conn.Err() == nil {
		t.Error("the connection ended without an error")
	}
	if victim.bytes[0] != 0xa5 {
		t.Error("memory was overwritten")
	}
	victim.conn = nil
}

// awaitEnd polls until the connection has ended.
func (s *side) awaitEnd(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); {
		for _, c := range s.completions[:s.queue.Poll(s.completions[:])] {
			if c.Opcode == rdma.OpDisconnected {
				return
			}
		}
	}
	t.Fatal("the connection did not end")
}

// acceptStream makes accepting accept a TCP stream, which sends a hand-made MPA Request of revision
// 2 (RFC 6581). It returns the stream after the handshake.
func (l *link) acceptStream(address netip.Addr, accepting *side) net.Conn {
	t := l.t
	listener, err := l.device.Listen(t.Context(), netip.AddrPortFrom(address, 0))
	must(t, err)
	defer func() { must(t, listener.Close()) }()
	stream, err := net.Dial("tcp", listener.Address().String())
	must(t, err)
	const enhanced, revision, privateBytes = 0x10, 2, 4
	request := append([]byte("MPA ID Req Frame"), enhanced, revision, 0, privateBytes)
	request = append(request, 0, 1, 0, 1) // one Read each way
	_, err = stream.Write(request)
	must(t, err)
	arrived, err := listener.Accept(t.Context())
	must(t, err)
	accepting.conn, err = arrived.Accept(t.Context(), accepting.config())
	must(t, err)
	reply := make([]byte, 20)
	must(t, stream.SetReadDeadline(time.Now().Add(testkit.Patience)))
	_, err = io.ReadFull(stream, reply)
	must(t, err)
	_, err = io.CopyN(io.Discard, stream, int64(binary.BigEndian.Uint16(reply[18:])))
	must(t, err)
	return stream
}
