// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestInvalidMPAFramesAreRejected(t *testing.T) {
	good := mpaFrame{revision: 2, enhanced: true, inboundReads: 1, outboundReads: 1}
	for name, c := range map[string]struct {
		change func([]byte)
		want   status.Code
	}{
		"wrong key":             {func(b []byte) { b[0] = 'X' }, status.Unexpected},
		"too much data":         {func(b []byte) { b[18] = 0xff }, status.TooBig},
		"revision 0":            {func(b []byte) { b[17] = 0 }, status.UnsupportedVersion},
		"revision 3":            {func(b []byte) { b[17] = 3 }, status.UnsupportedVersion},
		"enhanced revision 1":   {func(b []byte) { b[17] = 1 }, status.Unexpected},
		"enhanced without data": {func(b []byte) { b[19] = 3 }, status.Unexpected},
	} {
		b := good.append(nil, mpaRequestKey)
		c.change(b)
		n, err := mpaDataLength(b, mpaRequestKey)
		if err == nil {
			_, err = parseMPA(b[:mpaHeaderBytes+n])
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNegotiationPicksSmallerReadDepths(t *testing.T) {
	for _, c := range []struct{ requestIn, requestOut, replyIn, replyOut, wantIn, wantOut int }{
		{8, 4, 16, 8, 8, 4},
		{8, 16, 4, 2, 8, 4},
		{8, 16, depthByUpperLayer, depthByUpperLayer, 8, 16},
	} {
		request := newRequest(false, c.requestIn, c.requestOut, nil)
		reply := mpaFrame{
			revision: 2, enhanced: true,
			inboundReads: uint16(c.replyIn), outboundReads: uint16(c.replyOut),
		}
		a, v, err := acceptReply(&request, &reply)
		if v != nil || err != nil || a.inboundReads != c.wantIn || a.outboundReads != c.wantOut {
			t.Errorf("%+v: %+v, %v, %v", c, a, v, err)
		}
	}
}

func TestInvalidRepliesAreTerminated(t *testing.T) {
	request := newRequest(false, 4, 4, nil)
	usable := mpaFrame{revision: 2, enhanced: true, inboundReads: 4, outboundReads: 4}
	for name, c := range map[string]struct {
		change func(*mpaFrame)
		want   *violation
	}{
		"markers": {func(f *mpaFrame) { f.markers = true }, violationReply},
		"revision 1": {
			func(f *mpaFrame) { f.revision, f.enhanced = 1, false }, violationReply,
		},
		"too deep": {func(f *mpaFrame) { f.outboundReads = 5 }, violationReadDepth},
		"no RTR":   {func(f *mpaFrame) { f.peerToPeer = true }, violationReadyToReceive},
		"empty FPDU only": {
			func(f *mpaFrame) { f.peerToPeer, f.rtrFPDU = true, true }, violationReadyToReceive,
		},
	} {
		reply := usable
		c.change(&reply)
		if _, v, err := acceptReply(&request, &reply); v != c.want || err == nil {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
}

func TestReplyMatchesRequest(t *testing.T) {
	for name, c := range map[string]struct {
		request mpaFrame
		crc     bool
		want    mpaFrame
		rtr     readyToReceive
	}{
		"revision 1": {
			request: mpaFrame{revision: 1, crc: true},
			want:    mpaFrame{revision: 1, crc: true},
		},
		"siw's request": {
			request: mpaFrame{revision: 2, enhanced: true, inboundReads: 2, outboundReads: 3},
			want:    mpaFrame{revision: 2, enhanced: true, inboundReads: 16, outboundReads: 2},
		},
		"a NIC's request, CRC enabled on this side": {
			request: mpaFrame{
				revision: 2, enhanced: true, peerToPeer: true, rtrWrite: true, rtrRead: true,
				inboundReads: 99, outboundReads: 3,
			},
			crc: true,
			want: mpaFrame{
				revision: 2, crc: true, enhanced: true, peerToPeer: true, rtrRead: true,
				inboundReads: 16, outboundReads: 8,
			},
			rtr: rtrRead,
		},
		"Write only": {
			request: mpaFrame{
				revision: 2, enhanced: true, peerToPeer: true, rtrWrite: true,
				inboundReads: depthByUpperLayer, outboundReads: 3,
			},
			want: mpaFrame{
				revision: 2, enhanced: true, peerToPeer: true, rtrWrite: true,
				inboundReads: 16, outboundReads: 8,
			},
			rtr: rtrWrite,
		},
	} {
		reply, a := newReply(&c.request, c.crc, 16, 8, nil)
		got, want := reply.append(nil, mpaReplyKey), c.want.append(nil, mpaReplyKey)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: reply is %+v, want %+v", name, reply, c.want)
		}
		if a.rtr != c.rtr {
			t.Errorf("%s: ready-to-receive is %d", name, a.rtr)
		}
	}
}

func FuzzMPAFrame(f *testing.F) {
	f.Add(golden(f, "mpa_req_v2"))
	f.Add(golden(f, "mpa_rep_v2"))
	f.Add((&mpaFrame{revision: 1, privateData: []byte("x")}).append(nil, mpaRequestKey))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, key := range []string{mpaRequestKey, mpaReplyKey} {
			if len(b) < mpaHeaderBytes {
				return
			}
			n, err := mpaDataLength(b, key)
			testkit.CheckBounded(t, err)
			if err != nil || len(b) < mpaHeaderBytes+n {
				continue
			}
			b := b[:mpaHeaderBytes+n]
			frame, err := parseMPA(b)
			testkit.CheckBounded(t, err)
			if err != nil {
				continue
			}
			again := frame.append(nil, key)
			// Only reserved flags may get lost.
			again[16] |= b[16] & 0x0f
			if !bytes.Equal(again, b) {
				t.Errorf("%x is encoded again as %x", b, again)
			}
		}
	})
}
