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

// DefaultDirectory returns where servers and clients of this user meet: /run/zc-relay/comch for
// root, otherwise a directory below XDG_RUNTIME_DIR or, without that, /tmp/zc-relay-UID/comch.
func DefaultDirectory() string {
	if os.Geteuid() == 0 {
		return "/run/zc-relay/comch"
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

// Services lists the sockets in the directory, including those of killed servers whose names no
// other server has taken.
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

// trust is the system user who is trusted besides root and this user; 0 if there is none.
type trust uint32

// maxSystemUser is the largest number of a user that runs daemons (SYS_UID_MAX in login.defs(5)).
const maxSystemUser = 999

// appointed returns the system user to whom root has given the part of the file system that path
// is in, such as the user of a unit with RuntimeDirectory=. As nobody else can write to the
// directories above it, root has put it there.
func appointed(path string) trust {
	path, err := filepath.EvalSymlinks(path)
	if err != nil || !filepath.IsAbs(path) {
		return 0
	}
	for at := string(filepath.Separator); ; {
		var stat unix.Stat_t
		if err := unix.Lstat(at, &stat); err != nil || stat.Uid > maxSystemUser {
			return 0
		}
		if stat.Uid != 0 {
			return trust(stat.Uid)
		}
		if stat.Mode&0o022 != 0 || at == path {
			return 0
		}
		rest, _ := filepath.Rel(at, path)
		next, _, _ := strings.Cut(rest, string(filepath.Separator))
		at = filepath.Join(at, next)
	}
}

// openRoot opens the directory where servers and clients meet, for a client. A client trusts the
// daemon to which root has given the directory.
func openRoot(path string) (*directory, error) {
	path = filepath.Clean(path)
	trusted := appointed(path)
	if err := trusted.checkParent(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return trusted.openDirectory(unix.AT_FDCWD, path, path)
}

// makeRoot opens the directory where servers and clients meet, and creates it and its parents if
// necessary. The parents are public: the directory itself controls access.
func makeRoot(path string, public bool) (*directory, error) {
	path = filepath.Clean(path)
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, publicMode); err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	var nobody trust
	if err := nobody.checkParent(parent); err != nil {
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

func (t trust) openDirectory(at int, name, path string) (*directory, error) {
	descriptor, err := unix.Openat(at, name,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, status.Errorf(status.NotPermitted,
			"%s is a symbolic link or not a directory: remove it or choose another directory", path)
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
	return &directory{descriptor: descriptor, path: path, trusted: t}, nil
}

// checkParent checks that only trusted users can replace entries of path. It follows a symbolic
// link that belongs to one of them.
func (t trust) checkParent(path string) error {
	var link, stat unix.Stat_t
	if err := unix.Lstat(path, &link); err != nil {
		return fmt.Errorf("check directory %s: %w", path, err)
	}
	if err := t.checkOwner(path, &link); err != nil {
		return err
	}
	if err := unix.Stat(path, &stat); err != nil {
		return fmt.Errorf("check directory %s: %w", path, err)
	}
	if err := t.checkOwner(path, &stat); err != nil {
		return err
	}
	if stat.Mode&0o022 != 0 && stat.Mode&unix.S_ISVTX == 0 {
		return status.Errorf(status.NotPermitted,
			"%s has mode %#o and is writable by other users: run chmod go-w on it",
			path, stat.Mode&0o7777)
	}
	return nil
}

func (t trust) checkOwner(path string, stat *unix.Stat_t) error {
	if user := uint32(os.Geteuid()); stat.Uid != 0 && stat.Uid != user && stat.Uid != uint32(t) {
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

// sockets returns the names of the sockets in a directory inside d.
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
		if entry.Type() == os.ModeSocket && !strings.HasSuffix(entry.Name(), lockSuffix) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
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
