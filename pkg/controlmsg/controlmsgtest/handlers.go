package controlmsgtest

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Accept is a Handler that answers every request with success: OpenVolume
// with volume, and each CreateRDMAConnection with address and a token that
// starts with the number of the queue and the role.
func Accept(volume controlmsg.OpenVolumeReply, address netip.AddrPort) Handler {
	return func(request controlmsg.Message) (controlmsg.Message, error) {
		switch r := request.(type) {
		case *controlmsg.OpenVolume:
			reply := volume
			return &reply, nil
		case *controlmsg.ConfigureDataPath:
			return &controlmsg.ConfigureDataPathReply{InboundReads: r.Depth}, nil
		case *controlmsg.CreateRDMAConnection:
			token := [16]byte{byte(r.Queue >> 8), byte(r.Queue), byte(r.Role)}
			return &controlmsg.CreateRDMAConnectionReply{Address: address, Token: token}, nil
		case *controlmsg.StartDataPathConnections:
			return &controlmsg.StartDataPathConnectionsReply{ConsumerIDs: r.ConsumerIDs}, nil
		case *controlmsg.StartStorage:
			return &controlmsg.StartStorageReply{}, nil
		case *controlmsg.Stop:
			return &controlmsg.StopReply{}, nil
		case *controlmsg.DestroyObjects:
			return &controlmsg.DestroyObjectsReply{}, nil
		}
		return nil, status.Errorf(status.Unexpected, "no answer to %v", request.Kind())
	}
}

// Volume is a valid description of a volume, for tests that do not care.
func Volume() controlmsg.OpenVolumeReply {
	return controlmsg.OpenVolumeReply{
		Volume: "test", UUID: [16]byte{1}, WriteVerifier: 1, Size: 1 << 20, BlockSize: 4096,
		MaxQueues: 4, MaxDepth: 64, MaxBufferSize: 1 << 20, Transport: "iwarp",
	}
}

// Expect fails the test unless the requests that reach next are of exactly
// these kinds, in this order, by the time the test ends.
func Expect(t testing.TB, kinds []controlmsg.Kind, next Handler) Handler {
	t.Helper()
	var mu sync.Mutex
	remaining := append([]controlmsg.Kind(nil), kinds...)
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if len(remaining) > 0 {
			t.Errorf("requests that never came: %v", remaining)
		}
	})
	return func(request controlmsg.Message) (controlmsg.Message, error) {
		mu.Lock()
		if len(remaining) == 0 || remaining[0] != request.Kind() {
			t.Errorf("got request %v, expected next of %v", request.Kind(), remaining)
		} else {
			remaining = remaining[1:]
		}
		mu.Unlock()
		return next(request)
	}
}

// FailOn refuses requests of one kind with err and leaves all others to next.
func FailOn(kind controlmsg.Kind, err error, next Handler) Handler {
	return func(request controlmsg.Message) (controlmsg.Message, error) {
		if request.Kind() == kind {
			return nil, err
		}
		return next(request)
	}
}
