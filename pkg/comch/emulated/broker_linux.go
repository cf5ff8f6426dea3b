// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// importFromBroker imports memory that the peer has exported with the emulated libdoca, which does
// so without a connection: the descriptor names a broker that hands out the memory.
//
// The exporter takes the memory away from this process by putting other pages in its place, so it
// need not be told of anything but the end.
func (c *connection) importFromBroker(descriptor []byte) (*memory.Region, memory.Access, error) {
	d, err := broker.Parse(descriptor)
	if err != nil {
		return nil, 0, fmt.Errorf("import memory: %w", err)
	}
	access := brokerAccess(&d)
	if access == 0 {
		return nil, 0, status.Errorf(status.InvalidValue,
			"import memory: access flags %#x let this side neither read nor write", d.Access)
	}
	if err := c.exports.chargeImport(d.Length); err != nil {
		return nil, 0, fmt.Errorf("import memory of %d bytes: %w", d.Length, err)
	}
	region, err := c.openImport(&d, access)
	if err != nil {
		return nil, 0, fmt.Errorf("import memory of %d bytes at %#x: %w", d.Length, d.Address, err)
	}
	return region, access, nil
}

// What an import holds: the connection to the broker and the memory's file. The broker may send one
// descriptor more, which is closed at once.
var (
	brokerHoldings = holdings{descriptors: 2}
	brokerExcess   = holdings{descriptors: 1}
)

// brokerAccess returns the rights that a descriptor grants. With DOCA, whoever may use memory over
// PCI may export it for RDMA.
func brokerAccess(d *broker.Descriptor) memory.Access {
	switch {
	case d.Kind != broker.KindPCI:
		return 0
	case d.Access&broker.PCIReadWrite != 0:
		return memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	case d.Access&broker.PCIReadOnly != 0:
		return memory.PCIRead | memory.RemoteRead
	}
	return 0
}

// openImport maps the memory, whose length has been charged. It leaves a broker behind that does
// not answer in time, or whose descriptors cannot be closed: the client may have named one of its
// own. See cleanupQueue.
func (c *connection) openImport(d *broker.Descriptor, access memory.Access,
) (*memory.Region, error) {
	if err := c.account.reserve(brokerHoldings.plus(brokerExcess)); err != nil {
		c.exports.releaseImport(d.Length)
		return nil, err
	}
	type outcome struct {
		region *memory.Region
		err    error
	}
	opened, unwanted := make(chan outcome), make(chan struct{})
	c.cleanup.acquire()
	go func() {
		defer c.cleanup.release()
		region, err := c.askBroker(d, access)
		c.account.release(brokerExcess)
		select {
		case opened <- outcome{region, err}:
		case <-unwanted:
			if err == nil {
				_ = region.Close()
			}
		}
	}()
	timer := time.NewTimer(c.brokerTimeout)
	defer timer.Stop()
	select {
	case o := <-opened:
		return o.region, o.err
	case <-c.done:
		close(unwanted)
		return nil, c.notConnected("ask for the memory")
	case <-timer.C:
		close(unwanted)
		return nil, status.Errorf(status.TimeOut, "the exporter has not handed out the memory "+
			"within %v, or has sent descriptors that cannot be closed", c.brokerTimeout)
	}
}

// askBroker maps the memory. The region keeps the connection to the broker, and what was charged,
// until it is closed. askBroker blocks for as long as the broker likes.
func (c *connection) askBroker(d *broker.Descriptor, access memory.Access,
) (*memory.Region, error) {
	release := func() {
		c.exports.releaseImport(d.Length)
		c.account.release(brokerHoldings)
	}
	imported, err := broker.Open(d)
	if err != nil {
		release()
		return nil, err
	}
	closeFile := func() {
		if imported.File >= 0 {
			_ = unix.Close(imported.File)
		}
	}
	stop := func() {}
	region, err := c.mapImport(imported, d, access)
	if err != nil && c.reachesImports && isOtherwiseReachable(err) {
		var r *reached
		if r, err = reach(imported, d, access); err == nil {
			region, stop = memory.NewOpaque(r, d.Address, d.Length, nil), r.stop
			closeFile()
		}
	}
	if err != nil {
		_ = imported.Socket.Close()
		closeFile()
		release()
		return nil, err
	}
	region.OnClose(func() error {
		c.cleanup.add(func() {
			stop()
			_ = imported.Socket.Close()
			release()
		})
		return nil
	})
	return region, nil
}

// isOtherwiseReachable reports whether mapImport failed because of the file.
func isOtherwiseReachable(err error) bool {
	return errors.Is(err, status.NotSupported) || errors.Is(err, status.InvalidValue) ||
		errors.Is(err, status.TooBig)
}

// hugePage is what a file may take beyond its size, because it consists of huge pages.
const hugePage = 2 << 20

func (c *connection) mapImport(imported *broker.Import, d *broker.Descriptor, access memory.Access,
) (*memory.Region, error) {
	if peer := c.Peer(); peer.Known && imported.Exporter.Uid != peer.UID {
		return nil, status.Errorf(status.NotPermitted,
			"the memory belongs to user %d, but the peer is %v", imported.Exporter.Uid, peer)
	}
	if imported.File < 0 || imported.Offset != 0 {
		return nil, status.Errorf(status.NotSupported, "the exporter has no file with this memory "+
			"alone: export whole pages of private memory (see docs/guides/libdoca.md)")
	}
	size, err := exportedBytes(imported.File, d.Length)
	if err != nil {
		return nil, err
	}
	if size > d.Length+hugePage { // which stays allocated for as long as the region exists
		return nil, status.Errorf(status.TooBig, "the exporter's file takes %d bytes", size)
	}
	return memory.Import(imported.File, d.Address, d.Length, c.exports.maxBytes, access)
}
