// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Processes share memory by mapping a file, but applications export memory of their heap. So an
// export replaces the pages of that memory with pages of a file that have the same content, and the
// end of the last export puts private pages back. From then on nothing that an importer does
// reaches the application.
//
// Only whole pages of private memory are replaced. What another thread writes to a page while it is
// being replaced is lost; that cannot happen to a neighbor of the exported memory.

// sharedPages is a range of this process's memory that a file holds.
type sharedPages struct {
	start, end uintptr
	descriptor int
	inode      uint64
	users      int // exports
}

var pages struct {
	mu     sync.Mutex
	shared []*sharedPages
}

// replaceStep is how many bytes are replaced at a time: it bounds the memory that is needed twice.
const replaceStep = 4 << 20

// sharePages makes memory of the application shareable. It returns nil if that is not possible: the
// memory does not consist of whole pages, is not private, or overlaps other shared pages.
func sharePages(address, length uintptr) *sharedPages {
	if page := uintptr(os.Getpagesize()); address%page != 0 || length%page != 0 {
		return nil
	}
	pages.mu.Lock()
	defer pages.mu.Unlock()
	end := address + length
	for _, s := range pages.shared {
		if s.start <= address && end <= s.end {
			s.users++
			return s
		}
	}
	if !isPrivate(address, end) {
		return nil
	}
	s := &sharedPages{start: address, end: end, users: 1}
	if !s.create() {
		return nil
	}
	for at := address; at < end; at += replaceStep {
		if !s.replace(at, min(end, at+replaceStep)) {
			s.restore(at)
			_ = unix.Close(s.descriptor)
			return nil
		}
	}
	pages.shared = append(pages.shared, s)
	return s
}

// useShared returns the shared pages that hold a range already, or nil. It counts as an export.
func useShared(address, length uintptr) *sharedPages {
	pages.mu.Lock()
	defer pages.mu.Unlock()
	for _, s := range pages.shared {
		if s.start <= address && address+length <= s.end {
			s.users++
			return s
		}
	}
	return nil
}

// create creates the file, sealed so that importers can rely on its size.
func (s *sharedPages) create() bool {
	file, err := unix.MemfdCreate("libdoca-export", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return false
	}
	var stat unix.Stat_t
	err = unix.Ftruncate(file, int64(s.end-s.start))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS,
			unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		err = unix.Fstat(file, &stat)
	}
	if err != nil {
		_ = unix.Close(file)
		return false
	}
	s.descriptor, s.inode = file, stat.Ino
	return true
}

// replace puts pages of the file in place of private ones.
func (s *sharedPages) replace(from, to uintptr) bool {
	content := unsafe.Slice((*byte)(pointer(from)), int(to-from))
	for done := 0; done < len(content); {
		n, err := unix.Pwrite(s.descriptor, content[done:], int64(from-s.start)+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		done += n
	}
	_, err := unix.MmapPtr(s.descriptor, int64(from-s.start), pointer(from), to-from,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	return err == nil
}

// restore puts private pages with the same content back, up to end. It leaves alone what the
// application has unmapped meanwhile, and pages for which there is no memory.
func (s *sharedPages) restore(end uintptr) {
	for at := s.start; at < end; at += replaceStep {
		to := min(end, at+replaceStep)
		if inode, _, found := sharedFile(uint64(at), uint64(to-at)); !found || inode != s.inode {
			continue
		}
		private, err := unix.MmapPtr(-1, 0, nil, to-at, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			continue
		}
		copy(unsafe.Slice((*byte)(private), int(to-at)), unsafe.Slice((*byte)(pointer(at)),
			int(to-at)))
		_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(private), to-at, to-at,
			unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, at, 0)
		if errno != 0 {
			_ = unix.MunmapPtr(private, to-at)
		}
	}
}

// isLast reports whether the next release puts private pages back. s may be nil.
func (s *sharedPages) isLast() bool {
	if s == nil {
		return false
	}
	pages.mu.Lock()
	defer pages.mu.Unlock()
	return s.users == 1
}

// release ends an export. s may be nil.
func (s *sharedPages) release() {
	if s == nil {
		return
	}
	pages.mu.Lock()
	defer pages.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	pages.shared = slices.DeleteFunc(pages.shared,
		func(other *sharedPages) bool { return other == s })
	s.restore(s.end)
	_ = unix.Close(s.descriptor)
}

// isPrivate reports whether a range of this process is private memory, all of which can be read and
// written.
func isPrivate(start, end uintptr) bool {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line) // start-end perms offset dev inode path
		first, last, _ := strings.Cut(fields[0], "-")
		mappedFrom, _ := strconv.ParseUint(first, 16, 64)
		mappedTo, _ := strconv.ParseUint(last, 16, 64)
		if uint64(start) >= mappedTo {
			continue
		}
		anonymous := len(fields) == 5 || fields[5] == "[heap]" ||
			strings.HasPrefix(fields[5], "[anon:")
		if uint64(start) < mappedFrom || fields[1] != "rw-p" || fields[4] != "0" || !anonymous {
			return false
		}
		if uint64(end) <= mappedTo {
			return true
		}
		start = uintptr(mappedTo)
	}
	return false
}
