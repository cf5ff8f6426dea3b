// SPDX-License-Identifier: Apache-2.0

package chaintest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

// RawClient performs the handshake of a client step by step.
type RawClient struct {
	t          *testing.T
	chain      *Chain
	connection comch.Connection
	Requester  *controlmsg.Requester
}

// Raw connects such a client, up to the greeting.
func (c *Chain) Raw(t *testing.T) *RawClient {
	t.Helper()
	connection, err := c.Provider.Connect(c.Context(),
		comch.ClientConfig{Device: emulated.DefaultHostDevice, Name: client.DefaultChannelName})
	if err != nil {
		t.Fatal(err)
	}
	r := &RawClient{t: t, chain: c, connection: connection}
	r.Requester = controlmsg.NewRequester(controlmsg.NewComchTransport(connection),
		controlmsg.EndpointConfig{Role: controlmsg.RoleInitiator})
	t.Cleanup(func() { r.Requester.Close(nil) })
	if _, err := r.Requester.Greet(c.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// Call sends a request, and returns what the reply says.
func (r *RawClient) Call(m controlmsg.Message) error {
	_, err := r.Requester.Call(r.chain.Context(), m)
	return err
}

// Configuration returns a configuration that the chain accepts, with new memory.
func (r *RawClient) Configuration(epoch uint64) *controlmsg.ConfigureDataPath {
	r.t.Helper()
	region, err := memory.Alloc("raw client", 1<<20)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = region.Close() })
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	descriptor, err := r.connection.ExportMemory(r.chain.Context(), region, access)
	if err != nil {
		r.t.Fatal(err)
	}
	return &controlmsg.ConfigureDataPath{
		QueueCount: 1, Depth: 4, BufferSize: BlockSize, ClientInstance: [16]byte{7}, Epoch: epoch,
		Export: controlmsg.Export{Access: access, Length: region.Len(), Descriptor: descriptor},
	}
}
