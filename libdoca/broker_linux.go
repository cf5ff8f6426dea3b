// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

import (
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A process serves the memory that it has exported through a broker. An importer gets the memory's
// file, if it has one; otherwise it reads and writes the exporter's memory by system calls.

// goodbye is how long an importer may take to let memory go that it cannot reach afterwards anyway,
// because this process gets other pages.
const goodbye = 100 * time.Millisecond

// exports hands out what this process has exported.
var exports broker.Server

// Patience implements broker.Source.
func (x *exported) Patience() time.Duration {
	if x.pages.isLast() {
		return goodbye
	}
	return broker.Timeout
}

// Attend implements broker.Attendant. It returns at the importer's end, or with its answer to the
// revocation. Until then, an importer that cannot map the number of a sync event lets this process
// change it.
func (x *exported) Attend(c *net.UnixConn) {
	message := make([]byte, maxMessage)
	for {
		n, err := c.Read(message)
		request, isRequest := decodeRequest(message[:n])
		if err != nil || !isRequest || x.number == nil {
			return
		}
		if _, err := c.Write(x.serve(request).encode()); err != nil {
			return
		}
	}
}

// File implements broker.Source. Memory without a shared file that holds all of it is read and
// written by system calls, which this process allows, unless it is a sync event.
func (x *exported) File() (descriptor int, offset uint64) {
	if x.pages != nil {
		dup, err := unix.FcntlInt(uintptr(x.pages.descriptor), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			return dup, x.Address - uint64(x.pages.start)
		}
	}
	if inode, offset, found := sharedFile(x.Address, x.Length); found {
		if descriptor := duplicateOf(inode); descriptor >= 0 {
			return descriptor, offset
		}
	}
	if x.number != nil {
		return -1, 0
	}
	const ptracer, anybody = 0x59616d61, ^uintptr(0) // PR_SET_PTRACER, PR_SET_PTRACER_ANY
	_ = unix.Prctl(ptracer, anybody, 0, 0, 0)        // fails without Yama, which then asks nothing
	return -1, 0
}

// sharedFile finds the shared mapping of a memfd that holds a range of this process.
func sharedFile(address, length uint64) (inode, offset uint64, found bool) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line) // start-end perms offset dev inode path
		if len(fields) < 6 || !strings.HasSuffix(fields[1], "s") ||
			!strings.HasPrefix(fields[5], "/memfd:") {
			continue
		}
		first, last, _ := strings.Cut(fields[0], "-")
		start, _ := strconv.ParseUint(first, 16, 64)
		end, _ := strconv.ParseUint(last, 16, 64)
		if address < start || address+length > end {
			continue
		}
		fileOffset, _ := strconv.ParseUint(fields[2], 16, 64)
		inode, err := strconv.ParseUint(fields[4], 10, 64)
		return inode, fileOffset + address - start, err == nil
	}
	return 0, 0, false
}

// duplicateOf returns a duplicate of this process's descriptor of a memfd, or -1.
func duplicateOf(inode uint64) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	for _, entry := range entries {
		descriptor, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		link, _ := os.Readlink("/proc/self/fd/" + entry.Name())
		var stat unix.Stat_t
		if !strings.HasPrefix(link, "/memfd:") || unix.Fstat(descriptor, &stat) != nil ||
			stat.Ino != inode {
			continue
		}
		dup, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			return dup
		}
	}
	return -1
}

// remoteMemory is memory of another process, in the importer.
type remoteMemory struct {
	pid     int
	socket  *net.UnixConn
	mapping []byte // or nil
	watched chan struct{}

	operating sync.Mutex
	replies   chan eventReply // to the one request that is outstanding
}

// importRemote asks the broker of another process for memory.
func importRemote(said *broker.Descriptor) (*exported, uintptr, error) {
	imported, err := broker.Open(said)
	if err != nil {
		return nil, 0, err
	}
	remote := &remoteMemory{pid: int(imported.Exporter.Pid), socket: imported.Socket,
		watched: make(chan struct{}), replies: make(chan eventReply, 1)}
	var local uintptr
	if imported.File >= 0 {
		local, err = remote.mapFile(imported.File, imported.Offset, said)
		_ = unix.Close(imported.File)
		if err != nil {
			_ = remote.socket.Close()
			return nil, 0, err
		}
	}
	origin := &exported{Export: &broker.Export{Descriptor: *said}, remote: remote}
	go remote.watch(imported, origin)
	return origin, local, nil
}

// The rights that let an importer write.
const writeRights = broker.RDMAWrite | broker.PCIReadWrite

func (r *remoteMemory) mapFile(descriptor int, offset uint64, said *broker.Descriptor,
) (uintptr, error) {
	if _, err := unix.FcntlInt(uintptr(descriptor), unix.F_GET_SEALS, 0); err != nil {
		return 0, status.Errorf(status.InvalidValue, "the exporter sent no memfd: %w", err)
	}
	protection := unix.PROT_READ
	if said.Access&writeRights != 0 {
		protection |= unix.PROT_WRITE
	}
	skip := offset % uint64(os.Getpagesize())
	mapping, err := unix.Mmap(descriptor, int64(offset-skip), int(said.Length+skip),
		protection, unix.MAP_SHARED)
	if err != nil {
		return 0, status.Errorf(status.NoMemory, "map the memory of the exporter: %w", err)
	}
	r.mapping = mapping
	return addressOf(mapping) + uintptr(skip), nil
}

// watch revokes the memory when the exporter has, or is gone.
func (r *remoteMemory) watch(imported *broker.Import, origin *exported) {
	defer close(r.watched)
	imported.Watch(make([]byte, maxMessage), r.receive, origin.revoke)
}

// receive passes a reply on. It returns false for a revocation, and for a reply to no request.
func (r *remoteMemory) receive(message []byte) bool {
	reply, isReply := decodeReply(message)
	if !isReply {
		return false
	}
	select {
	case r.replies <- reply:
		return true
	default:
		return false
	}
}

// close ends the import.
func (r *remoteMemory) close() {
	_ = r.socket.SetReadDeadline(time.Unix(0, 1))
	<-r.watched
	_ = r.socket.Close()
	if r.mapping != nil {
		_ = unix.Munmap(r.mapping) // nobody copies any more
	}
}

// read copies from the exporter's memory; address is the exporter's.
func (r *remoteMemory) read(to []byte, address uintptr) error {
	return r.transfer(unix.ProcessVMReadv, to, address)
}

func (r *remoteMemory) write(address uintptr, from []byte) error {
	return r.transfer(unix.ProcessVMWritev, from, address)
}

func (r *remoteMemory) transfer(
	call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), local []byte,
	address uintptr) error {
	var vector unix.Iovec
	vector.Base = &local[0]
	vector.SetLen(len(local))
	n, err := call(r.pid, []unix.Iovec{vector},
		[]unix.RemoteIovec{{Base: address, Len: len(local)}}, 0)
	if err == nil && n < len(local) {
		err = io.ErrShortBuffer
	}
	if err != nil {
		return status.Errorf(status.IOFailed, "memory of process %d at %#x: %w", r.pid, address,
			err)
	}
	return nil
}
