// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// RootDirectory is where servers and clients of root meet by default.
const RootDirectory = "/run/zc-relay/comch"

// DefaultDirectory returns where servers and clients of this user meet: RootDirectory for root,
// otherwise a directory below XDG_RUNTIME_DIR or, without that, /tmp/zc-relay-UID/comch.
func DefaultDirectory() string {
	if os.Geteuid() == 0 {
		return RootDirectory
	}
	if runtimeDirectory := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(runtimeDirectory) {
		return filepath.Join(runtimeDirectory, "zc-relay", "comch")
	}
	return filepath.Join(os.TempDir(), "zc-relay-"+strconv.Itoa(os.Geteuid()), "comch")
}

// maxDevices bounds how many representors, and how many DPU devices of each, are read.
const maxDevices = 1024

// maxServices bounds how many services of a device are listed.
const maxServices = 1024

// Services lists the sockets in the directory, except those that killed servers have left.
func (u unixSockets) Services() ([]comch.Service, error) {
	root, err := openRoot(u.directory)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.close()
	representors, err := root.directories()
	if err != nil {
		return nil, err
	}
	var services []comch.Service
	var errs []error
	for _, representor := range representors {
		found, err := servicesOf(root, representor)
		services = append(services, found...)
		errs = append(errs, err)
	}
	return services, errors.Join(errs...)
}

// servicesOf lists the services of one representor.
func servicesOf(root *directory, representor string) ([]comch.Service, error) {
	host, err := root.open(representor)
	if err != nil {
		return nil, err
	}
	defer host.close()
	devices, err := host.directories()
	if err != nil {
		return nil, err
	}
	var services []comch.Service
	for _, device := range devices {
		names, err := host.sockets(device)
		if err != nil {
			return services, err
		}
		for _, name := range names {
			services = append(services,
				comch.Service{Device: device, Representor: representor, Name: name})
		}
	}
	return services, nil
}

// Modes of the directories that servers create.
const (
	privateMode = 0o700
	publicMode  = 0o755 // of servers that allow other users
)

// directory is an open directory that only trusted users can modify.
type directory struct {
	descriptor int
	path       string // for messages
	trusted    trust
}

// trust says whom a directory may belong to, besides root and this user.
type trust struct {
	// daemon is the system user to whom root has given a part of the file system, such as the user
	// of a unit with RuntimeDirectory=; 0 if there is none.
	daemon uint32
	// appoints is set while only root can change where the path leads. The first directory of a
	// system user is then one that root has put there.
	appoints bool
}

// maxSystemUser is the largest number of a user that runs daemons (SYS_UID_MAX in login.defs(5)).
const maxSystemUser = 999

// openRoot opens the directory where servers and clients meet, for a client. A client trusts the
// daemon to which root has given the directory.
func openRoot(path string) (*directory, error) {
	path, err := filepath.Abs(path) // what is checked must be what is opened
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	trusted := trust{appoints: true}
	if err := trusted.checkAncestors(path, false); err != nil {
		return nil, err
	}
	return trusted.openDirectory(unix.AT_FDCWD, path, path)
}

// makeRoot opens the directory where servers and clients meet, and creates it and its parents if
// necessary. The parents are public: the directory itself controls access.
func makeRoot(path string, public bool) (*directory, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	var nobody trust
	if err := nobody.checkAncestors(path, true); err != nil {
		return nil, err
	}
	return makeDirectory(unix.AT_FDCWD, path, path, public)
}

// open opens a directory inside d.
func (d *directory) open(name string) (*directory, error) {
	return d.trusted.openDirectory(d.descriptor, name, filepath.Join(d.path, name))
}

// make opens a directory inside d, and creates it if necessary.
func (d *directory) make(name string, public bool) (*directory, error) {
	return makeDirectory(d.descriptor, name, filepath.Join(d.path, name), public)
}

func makeDirectory(at int, name, path string, public bool) (*directory, error) {
	if err := unix.Mkdirat(at, name, privateMode); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("create directory %s: %w", path, err)
	}
	var nobody trust
	d, err := nobody.openDirectory(at, name, path)
	if err != nil || !public {
		return d, err
	}
	if err := unix.Fchmod(d.descriptor, publicMode); err != nil {
		d.close()
		return nil, fmt.Errorf("make directory %s accessible to every user: %w", path, err)
	}
	return d, nil
}

func (t *trust) openDirectory(at int, name, path string) (*directory, error) {
	descriptor, err := unix.Openat(at, name,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, status.Errorf(status.NotPermitted,
			"%s is a symbolic link or not a directory: remove it or choose another directory", path)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, status.Errorf(status.NotPermitted, "open directory %s: %w: it belongs to another "+
			"user (ls -ld): run this program as that one, or choose another directory", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", path, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(descriptor, &stat); err != nil {
		closeDescriptor(descriptor)
		return nil, fmt.Errorf("check directory %s: %w", path, err)
	}
	if err := t.checkOwner(path, &stat); err != nil {
		closeDescriptor(descriptor)
		return nil, err
	}
	if stat.Mode&0o022 != 0 {
		closeDescriptor(descriptor)
		return nil, status.Errorf(status.NotPermitted,
			"%s has mode %#o and is writable by other users: run chmod go-w on it",
			path, stat.Mode&0o7777)
	}
	return &directory{descriptor: descriptor, path: path, trusted: trust{daemon: t.daemon}}, nil
}

// maxLinks bounds the symbolic links on the way to a directory, as the kernel does.
const maxLinks = 40

// checkAncestors checks that only trusted users can replace path, which is absolute, or any
// directory above it: who can rename one of them decides what path means. It follows symbolic links
// that belong to trusted users, and checks the way to their targets too. If create, it creates
// missing directories.
func (t *trust) checkAncestors(path string, create bool) error {
	pending := strings.Split(filepath.Dir(path), "/")
	current, links := "/", 0
	if _, err := t.checkAncestor(current, path, false); err != nil {
		return err
	}
	appoints := t.appoints
	for len(pending) > 0 {
		next := filepath.Join(current, pending[0]) // of "" and "..", too
		pending = pending[1:]
		mode, err := t.checkAncestor(next, path, create)
		if err != nil {
			return err
		}
		if mode != unix.S_IFLNK {
			current = next
			continue
		}
		if links++; links > maxLinks {
			return status.Errorf(status.NotPermitted,
				"there are more than %d symbolic links on the way to %s: choose another directory",
				maxLinks, path)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return fmt.Errorf("check directory %s: %w", next, err)
		}
		if filepath.IsAbs(target) {
			// The link is root's or this user's, who has chosen another way from the root on.
			current, t.appoints = "/", appoints && t.daemon == 0
		}
		pending = append(strings.Split(target, "/"), pending...)
	}
	return nil
}

// checkAncestor checks one directory, or symbolic link, on the way to path, and returns its type.
func (t *trust) checkAncestor(ancestor, path string, create bool) (kind uint32, err error) {
	var stat unix.Stat_t
	err = unix.Lstat(ancestor, &stat)
	if create && errors.Is(err, unix.ENOENT) {
		if err := os.Mkdir(ancestor, publicMode); err != nil && !errors.Is(err, os.ErrExist) {
			return 0, fmt.Errorf("create directory above %s: %w", path, err)
		}
		err = unix.Lstat(ancestor, &stat)
	}
	if err != nil {
		return 0, fmt.Errorf("check directory %s: %w", ancestor, err)
	}
	if err := t.checkOwner(ancestor, &stat); err != nil {
		return 0, err
	}
	kind = stat.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFLNK:
	case kind != unix.S_IFDIR:
		return 0, status.Errorf(status.NotPermitted,
			"%s, on the way to %s, is not a directory: remove it or choose another directory",
			ancestor, path)
	case stat.Mode&0o022 != 0 && stat.Mode&unix.S_ISVTX == 0:
		return 0, status.Errorf(status.NotPermitted,
			"%s has mode %#o: other users can write to it and replace %s: run chmod go-w on it",
			ancestor, stat.Mode&0o7777, path)
	}
	return kind, nil
}

// checkOwner checks to whom a directory, or symbolic link, belongs. It is called for each in turn,
// starting at the root of the file system.
func (t *trust) checkOwner(path string, stat *unix.Stat_t) error {
	user, directory := uint32(os.Geteuid()), stat.Mode&unix.S_IFMT == unix.S_IFDIR
	if t.appoints && directory && stat.Uid <= maxSystemUser && stat.Uid != user {
		t.daemon = stat.Uid
	}
	if stat.Uid != 0 || directory && stat.Mode&0o022 != 0 {
		t.appoints = false
	}
	if stat.Uid != 0 && stat.Uid != user && stat.Uid != t.daemon {
		return status.Errorf(status.NotPermitted,
			"%s belongs to user %d, not to root or user %d: choose another directory",
			path, stat.Uid, user)
	}
	return nil
}

// directories returns the names of the directories in d.
func (d *directory) directories() ([]string, error) {
	entries, err := d.entries(maxDevices)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// sockets returns the names of the sockets of running servers in a directory inside d.
func (d *directory) sockets(name string) ([]string, error) {
	inner, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer inner.close()
	entries, err := inner.entries(maxServices)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.Type() == os.ModeSocket && !strings.HasSuffix(entry.Name(), lockSuffix) &&
			!inner.isLeft(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// isLeft reports whether the server that made a socket in d has ended. It asks with a socket of
// another type, which the kernel refuses with EPROTOTYPE without the server's taking part.
func (d *directory) isLeft(name string) bool {
	descriptor, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|
		unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer closeDescriptor(descriptor)
	err = unix.Connect(descriptor, &unix.SockaddrUnix{Name: d.entry(name)})
	return errors.Is(err, unix.ECONNREFUSED)
}

// entries reads up to limit entries of d.
func (d *directory) entries(limit int) ([]os.DirEntry, error) {
	dup, err := duplicate(d.descriptor)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(dup), d.path)
	defer func() { _ = file.Close() }()
	entries, err := file.ReadDir(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list directory %s: %w", d.path, err)
	}
	return entries, nil
}

// entry returns a path to a file in d that is short even if the path of d is long: the length of
// socket addresses is limited.
func (d *directory) entry(name string) string {
	return descriptorPath(d.descriptor) + "/" + name
}

// descriptorPath returns a path to the file behind a descriptor of this process.
func descriptorPath(descriptor int) string {
	return "/proc/self/fd/" + strconv.Itoa(descriptor)
}

func (d *directory) close() { closeDescriptor(d.descriptor) }
