// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/iouring"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// controlPath is the file of the driver.
const controlPath = "/dev/ublk-control"

// linuxDriver is the driver of this machine's kernel.
type linuxDriver struct{ file *os.File }

func openDriver() (driver, error) {
	file, err := os.OpenFile(controlPath, os.O_RDWR, 0)
	if err != nil {
		return nil, explainOpen(err)
	}
	return &linuxDriver{file}, nil
}

// explainOpen says why there is no driver.
func explainOpen(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return status.Errorf(status.NotSupported, "the kernel%s has no ublk: run \"modprobe ublk_drv\", or "+
			"use a kernel that has the module (Linux 6.12 or newer with CONFIG_BLK_DEV_UBLK; Debian's "+
			"6.1 is built without): %w", release(), err)
	case errors.Is(err, fs.ErrPermission):
		return status.Errorf(status.NotPermitted, "%w (root may use it, and whom a rule of udev admits)",
			err)
	}
	return err
}

// release returns the kernel's release, with a space before it, "" if it is unknown.
func release() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return " " + unix.ByteSliceToString(name.Release[:])
}

func (d *linuxDriver) close() error { return d.file.Close() }

// control uses a ring for each command: some take long, and there are few.
func (d *linuxDriver) control(ctx context.Context, o operation, c control) error {
	done := make(chan error, 1)
	go func() { done <- d.carryOut(o, c) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%v: %w", o, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%v: %w", o, status.ContextError(ctx))
	}
}

func (d *linuxDriver) carryOut(o operation, c control) error {
	// The kernel completes a command on the thread that has submitted it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ring, err := iouring.New(iouring.Config{Entries: 1, LargeEntries: true})
	if err != nil {
		return err
	}
	defer ring.Close()
	buffer, path := c.buffer, ""
	if c.withPath {
		path = serverPath(c.id) + "\x00"
		buffer = append([]byte(path), c.buffer...)
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	address := addressOf(buffer, &pinner)
	e := binary.NativeEndian
	b := ring.PushCommand(int(d.file.Fd()), uint32(o), 0)
	e.PutUint32(b, uint32(int32(c.id)))
	e.PutUint16(b[4:], 0xffff) // no queue
	e.PutUint16(b[6:], uint16(len(buffer)))
	e.PutUint64(b[8:], address)
	e.PutUint64(b[16:], c.data)
	e.PutUint16(b[24:], uint16(len(path)))
	if err := ring.Enter(1); err != nil {
		return err
	}
	var found [1]iouring.Completion
	ring.Reap(found[:])
	if found[0].Result < 0 {
		return syscall.Errno(-found[0].Result)
	}
	copy(c.buffer, buffer[len(path):])
	return nil
}

func (d *linuxDriver) isAlive(process int32) bool {
	err := syscall.Kill(int(process), 0)
	return process > 0 && (err == nil || errors.Is(err, syscall.EPERM))
}

func (d *linuxDriver) hold(id int) (func(), error) {
	file, err := os.OpenFile(Path(id), os.O_RDONLY|unix.O_EXCL, 0)
	switch {
	case errors.Is(err, syscall.EBUSY):
		return nil, status.Errorf(status.InUse, "%s is in exclusive use: %s", Path(id),
			strings.Join(append(users(id), "unmount it, and end what lies on it"), ", "))
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return func() {}, checkUsers(id) // as well as somebody without access can tell
	case err != nil:
		return nil, err
	}
	if err := file.Sync(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

func (d *linuxDriver) checkUnused(id int) error { return checkUsers(id) }

func checkUsers(id int) error {
	if found := users(id); len(found) > 0 {
		return status.Errorf(status.InUse, "%s is in use: %s", Path(id), strings.Join(found, ", "))
	}
	return nil
}

// users says what this process can see to use a device and its partitions, without opening them,
// which takes as long as their server is away.
func users(id int) []string {
	folder := filepath.Join("/sys/block", filepath.Base(Path(id)))
	partitions, _ := filepath.Glob(folder + "/*/partition")
	var found []string
	for _, place := range append([]string{folder + "/partition"}, partitions...) {
		place = filepath.Dir(place)
		name := filepath.Base(place)
		holders, _ := filepath.Glob(place + "/holders/*")
		for _, holder := range holders {
			found = append(found, filepath.Base(holder)+" lies on "+name)
		}
		if number, err := os.ReadFile(place + "/dev"); err == nil {
			// "36 35 98:0 / /mnt …" (proc(5))
			for line := range fieldsOf("/proc/self/mountinfo") {
				if len(line) > 4 && line[2] == strings.TrimSpace(string(number)) {
					found = append(found, name+" is mounted at "+line[4])
				}
			}
		}
		for line := range fieldsOf("/proc/swaps") {
			if len(line) > 0 && line[0] == "/dev/"+name {
				found = append(found, name+" is swap space")
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// fieldsOf returns the fields of each line of a file, nothing if it cannot be read.
func fieldsOf(path string) func(yield func([]string) bool) {
	content, _ := os.ReadFile(path)
	return func(yield func([]string) bool) {
		for line := range strings.Lines(string(content)) {
			if !yield(strings.Fields(line)) {
				return
			}
		}
	}
}

// linuxServer is an open /dev/ublkcN.
type linuxServer struct{ file *os.File }

func (d *linuxDriver) open(id int) (server, error) {
	file, err := os.OpenFile(serverPath(id), os.O_RDWR, 0)
	if errors.Is(err, syscall.EBUSY) {
		return nil, status.Errorf(status.InUse, "another server has the device: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &linuxServer{file}, nil
}

func (s *linuxServer) close() error { return s.file.Close() }

// linuxRing is the ring of a queue.
type linuxRing struct {
	*iouring.Ring
	file        int
	index       uint16
	descriptors []byte // shared with the kernel, which writes them
	trash       []byte // where the data of rejected writes goes
	found       [completionBatch]iouring.Completion
}

func (s *linuxServer) queue(index, depth, maxBytes int) (ring, error) {
	ring, err := iouring.New(iouring.Config{Entries: depth, Cooperative: true})
	if err != nil {
		return nil, err
	}
	r := &linuxRing{Ring: ring, file: int(s.file.Fd()), index: uint16(index)}
	page := os.Getpagesize()
	size := (depth*descriptorSize + page - 1) / page * page
	r.descriptors, err = unix.Mmap(r.file, int64(index)*MaxDepth*descriptorSize, size,
		unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the requests' descriptors: %w", err), ring.Close())
	}
	r.trash, err = unix.Mmap(-1, 0, maxBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(r.descriptors), ring.Close())
	}
	return r, nil
}

func (r *linuxRing) close() error {
	return errors.Join(r.Ring.Close(), unix.Munmap(r.descriptors), unix.Munmap(r.trash))
}

// push pushes a command. The ring has an entry for each tag, so there is room.
func (r *linuxRing) push(o queueOperation, tag uint16, result int32, address uint64) {
	b := r.PushCommand(r.file, uint32(o), uint64(tag))
	e := binary.NativeEndian
	e.PutUint16(b, r.index)
	e.PutUint16(b[2:], tag)
	e.PutUint32(b[4:], uint32(result))
	e.PutUint64(b[8:], address)
}

func (r *linuxRing) fetch(tag uint16) { r.push(fetchRequest, tag, 0, 0) }

func (r *linuxRing) getData(tag uint16, data []byte) {
	if data == nil {
		data = r.trash
	}
	r.push(needGetData, tag, 0, mappedAddress(data))
}

// commit always passes an address: the driver demands one for every read, even for one that failed.
func (r *linuxRing) commit(tag uint16, result int32, data []byte) {
	if len(data) == 0 {
		data = r.descriptors
	}
	r.push(commitAndFetch, tag, result, mappedAddress(data))
}

func (r *linuxRing) submit(wait int) error { return r.Enter(wait) }

func (r *linuxRing) reap(completions []completion) int {
	if !r.HasCompletions() && r.MustEnter() && r.Enter(0) != nil {
		return 0
	}
	n := r.Reap(r.found[:min(len(completions), len(r.found))])
	for i, c := range r.found[:n] {
		completions[i] = completion{tag: c.UserData, result: c.Result}
	}
	return n
}

func (r *linuxRing) descriptor(tag uint16) descriptor {
	return decodeDescriptor(r.descriptors[int(tag)*descriptorSize:])
}

// Arm reports whether there are no completions. What the kernel completes from now on ends the
// sleep of this thread.
func (r *linuxRing) Arm() bool { return !r.HasCompletions() && !r.MustEnter() }

// Disarm does nothing.
func (r *linuxRing) Disarm() {}

// Clear does nothing: reap consumes what made the descriptor readable.
func (r *linuxRing) Clear() {}
