// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// reached is the memory.Copier of memory that this process cannot map. It copies through the
// address space of the exporter.
type reached struct {
	// space is /proc/PID/mem, which stays the exporter's when another process gets its PID.
	space   *os.File
	pid     int32
	base    uint64
	socket  *net.UnixConn // of the broker
	watched chan struct{} // closed when watch has returned

	// copying is held for reading while the memory is used, so that revoking waits for that.
	copying sync.RWMutex
	revoked bool
}

// reach opens the address space of the exporter. The result uses the socket of the import, which
// the caller closes after stop.
func reach(imported *broker.Import, d *broker.Descriptor, access memory.Access) (*reached, error) {
	const advice = "export whole pages of private memory instead (see docs/guides/libdoca.md)"
	pid := imported.Exporter.Pid
	if pid <= 0 {
		return nil, status.Errorf(status.NotSupported,
			"the exporter is in another PID namespace: run both programs in one, or %s", advice)
	}
	mode := os.O_RDONLY
	if access.Has(memory.PCIWrite) {
		mode = os.O_RDWR
	}
	space, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), mode, 0)
	if errors.Is(err, os.ErrPermission) {
		return nil, status.Errorf(status.NotPermitted, "open the memory of process %d: %w: run "+
			"this program as root, set kernel.yama.ptrace_scope to 0 or 1, or %s", pid, err, advice)
	}
	if err != nil {
		return nil, status.Errorf(status.NotFound, "open the memory of process %d: %w", pid, err)
	}
	if err := checkSpace(space, imported); err != nil {
		_ = space.Close()
		return nil, err
	}
	r := &reached{space: space, pid: pid, base: d.Address, socket: imported.Socket,
		watched: make(chan struct{})}
	go r.watch(imported)
	return r, nil
}

// checkSpace fails unless an address space is that of a process of the exporter's user. The
// exporter could otherwise end, and name a process of somebody else that gets its PID.
func checkSpace(space *os.File, imported *broker.Import) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(space.Fd()), &stat); err != nil {
		return status.Errorf(status.OperatingSystem, "examine the exporter's memory: %w", err)
	}
	if stat.Uid != imported.Exporter.Uid {
		return status.Errorf(status.NotPermitted,
			"process %d, which exported the memory, belongs to user %d now, instead of %d",
			imported.Exporter.Pid, stat.Uid, imported.Exporter.Uid)
	}
	return nil
}

// watch revokes the memory when the exporter takes it away, or ends.
func (r *reached) watch(imported *broker.Import) {
	defer close(r.watched)
	imported.Watch(make([]byte, 1), func([]byte) bool { return false }, func() {
		r.copying.Lock()
		defer r.copying.Unlock()
		r.revoked = true
	})
}

// stop closes the address space. Nobody copies any more.
func (r *reached) stop() {
	_ = r.socket.SetReadDeadline(time.Unix(0, 1))
	<-r.watched
	_ = r.space.Close()
}

// Device implements memory.Handle.
func (r *reached) Device() memory.Device { return memory.Device{} }

// CopyOut implements memory.Copier.
func (r *reached) CopyOut(dst []byte, offset uint64) error {
	return r.transfer(r.space.ReadAt, dst, offset)
}

// CopyIn implements memory.Copier.
func (r *reached) CopyIn(offset uint64, src []byte) error {
	return r.transfer(r.space.WriteAt, src, offset)
}

func (r *reached) transfer(call func([]byte, int64) (int, error), b []byte, offset uint64) error {
	r.copying.RLock()
	defer r.copying.RUnlock()
	if r.revoked {
		return r.gone()
	}
	_, err := call(b, int64(r.base+offset))
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return r.gone()
	case err != nil:
		return status.Errorf(status.IOFailed, "memory of process %d at offset %d: %w", r.pid,
			offset, err)
	}
	return nil
}

func (r *reached) gone() error {
	return status.Errorf(status.IOFailed,
		"process %d has taken the memory away that it exported, or has ended", r.pid)
}
