// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// An exporter sends answers that nobody has asked for. The import ends, and closing it does not
// wait.
func TestAnExporterThatAnswersUnaskedLosesItsImporter(t *testing.T) {
	d := &broker.Descriptor{Kind: exportEventPCI, Access: broker.PCIReadWrite, Address: 4096,
		Length: eventSize, Name: fmt.Sprintf("zc-libdoca-test-%d", os.Getpid())}
	listener, err := net.Listen(broker.Network, "@"+d.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return // the test has ended
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, len(d.ID)))
		_, _ = c.Write((&broker.Reply{Access: d.Access, Address: d.Address,
			Length: d.Length}).Encode())
		for range 10 {
			_, _ = c.Write(eventReply{status.Success, 1}.encode())
		}
		_, _ = c.Read(make([]byte, 1)) // until the importer is gone
	}()
	origin, _, err := importRemote(d)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, "the import ends", origin.remote.watched)
	if _, err := origin.remote.operate(eventRequest{}); err == nil {
		t.Error("an operation of an import that has ended succeeds")
	}
	origin.remote.close()
}
