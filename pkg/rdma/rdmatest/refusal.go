package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var refusalTests = []conformanceTest{
	{"IncompleteConfigurationsAreRefused", "", incompleteConfigs},
	{"TooMuchPrivateDataIsRefused", "", tooMuchPrivateData},
	{"ARejectionCarriesItsReason", "", rejection},
	{"ConnectingWhereNobodyListensFails", "", nobodyListens},
	{"ConnectEndsWithItsContext", "", connectDeadline},
	{"AcceptEndsWithItsContext", "", acceptDeadline},
	{"ClosingAListenerEndsItsAccept", "", closedListener},
	{"ClosingAListenerRefusesWaitingRequests", "", closedWithRequests},
}

func incompleteConfigs(b *bench) {
	remote := b.listen().Address()
	for name, spoil := range map[string]func(*rdma.ConnectionConfig){
		"no domain":           func(c *rdma.ConnectionConfig) { c.Domain = nil },
		"no queue":            func(c *rdma.ConnectionConfig) { c.Queue = nil },
		"no send requests":    func(c *rdma.ConnectionConfig) { c.SendRequests = 0 },
		"no receive requests": func(c *rdma.ConnectionConfig) { c.ReceiveRequests = 0 },
		"negative read depth": func(c *rdma.ConnectionConfig) { c.InboundReads = -1 },
		"too many receives": func(c *rdma.ConnectionConfig) {
			c.Receives = make([]rdma.ReceiveRequest, c.ReceiveRequests+1)
		},
	} {
		e := b.end()
		spoil(&e.config)
		if _, err := b.device.Connect(b.context(), remote, e.config); err == nil {
			b.Errorf("%s: accepted", name)
		}
	}
}

func tooMuchPrivateData(b *bench) {
	listener := b.listen()
	e := b.end()
	e.config.PrivateData = make([]byte, rdma.MaxPrivateData+1)
	if _, err := b.device.Connect(b.context(), listener.Address(), e.config); err == nil {
		b.Error("Connect takes more than MaxPrivateData")
	}
}

// tryConnect connects in the background and returns the error.
func (b *bench) tryConnect(ctx context.Context, remote netip.AddrPort) <-chan error {
	e := b.end()
	result := make(chan error, 1)
	go func() {
		_, err := b.device.Connect(ctx, remote, e.config)
		result <- err
	}()
	return result
}

func rejection(b *bench) {
	listener := b.listen()
	result := b.tryConnect(b.context(), listener.Address())
	request, err := listener.Accept(b.context())
	if err != nil {
		b.Fatal(err)
	}
	reason := bytes.Repeat([]byte{'r'}, rdma.MaxPrivateData)
	if err := request.Reject(append(reason, 'r')); err == nil {
		b.Error("Reject takes more than MaxPrivateData")
	}
	if err := request.Reject(reason); err != nil {
		b.Fatal(err)
	}
	var rejected *rdma.RejectedError
	if err := <-result; !errors.As(err, &rejected) || !bytes.Equal(rejected.Reason, reason) {
		b.Errorf("Connect returns %v", err)
	}
}

func nobodyListens(b *bench) {
	listener := b.listen()
	remote := listener.Address()
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
	if err := <-b.tryConnect(b.context(), remote); err == nil {
		b.Error("Connect succeeds where nobody listens")
	}
}

func connectDeadline(b *bench) {
	listener := b.listen()
	ctx, cancel := context.WithCancel(b.context())
	result := b.tryConnect(ctx, listener.Address())
	// The request is there, nobody answers it, and the caller gives up.
	request, err := listener.Accept(b.context())
	if err != nil {
		b.Fatal(err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		b.Errorf("Connect returns %v", err)
	}
	_ = request.Reject(nil) // to nobody
}

func acceptDeadline(b *bench) {
	listener := b.listen()
	ctx, cancel := context.WithCancel(b.context())
	cancel()
	if _, err := listener.Accept(ctx); !errors.Is(err, context.Canceled) {
		b.Errorf("Accept returns %v", err)
	}
}

func closedListener(b *bench) {
	listener := b.listen()
	result := make(chan error, 1)
	go func() {
		_, err := listener.Accept(b.context())
		result <- err
	}()
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
	if err := <-result; !errors.Is(err, status.Shutdown) {
		b.Errorf("Accept returns %v", err)
	}
	if _, err := listener.Accept(b.context()); !errors.Is(err, status.Shutdown) {
		b.Errorf("a later Accept returns %v", err)
	}
}

func closedWithRequests(b *bench) {
	listener := b.listen()
	result := b.tryConnect(b.context(), listener.Address())
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
	if err := <-result; err == nil {
		b.Error("a request that was not accepted succeeds")
	}
}
