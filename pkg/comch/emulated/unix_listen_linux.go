// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (u unixSockets) Listen(_ context.Context, service comch.Service, public bool,
) (SocketListener, error) {
	device, err := u.serviceDirectory(service, public)
	if err != nil {
		return nil, err
	}
	lock, err := lockName(device, service.Name)
	if err != nil {
		device.close()
		return nil, err
	}
	listener, err := lock.listen(public)
	if err != nil {
		lock.unlock()
		return nil, err
	}
	return &unixListener{sockets: u, service: service, lock: lock, listener: listener}, nil
}

// serviceDirectory opens the directory of a service. It creates missing directories, and makes all
// of them accessible to every user if public.
func (u unixSockets) serviceDirectory(service comch.Service, public bool) (*directory, error) {
	root, err := makeRoot(u.directory, public)
	if err != nil {
		return nil, err
	}
	defer root.close()
	host, err := root.make(service.Representor, public)
	if err != nil {
		return nil, err
	}
	defer host.close()
	return host.make(service.Device, public)
}

// check returns why Listen would fail for another reason than the name, and changes nothing.
func (u unixSockets) check(service comch.Service, public bool) error {
	path, err := filepath.Abs(u.directory)
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	var nobody trust
	err = nobody.checkAncestors(path, false)
	for _, name := range []string{"", service.Representor, service.Device} {
		path = filepath.Join(path, name)
		if err == nil {
			err = checkDirectory(path, public)
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return files.CheckCreatableWithParents(path)
	}
	if err != nil {
		return err
	}
	return files.CheckCreatable(path + "/" + service.Name)
}

// checkDirectory returns why makeDirectory would fail with a directory that exists.
func checkDirectory(path string, public bool) error {
	var nobody trust
	d, err := nobody.openDirectory(unix.AT_FDCWD, path, path)
	if err != nil {
		return err
	}
	defer d.close()
	var stat unix.Stat_t
	if err := unix.Fstat(d.descriptor, &stat); err != nil {
		return fmt.Errorf("check directory %s: %w", path, err)
	}
	user := uint32(os.Geteuid())
	if public && user != 0 && stat.Uid != user {
		return status.Errorf(status.NotPermitted, "%s belongs to user %d, so user %d cannot make it "+
			"accessible to every user: choose another directory", path, stat.Uid, user)
	}
	return nil
}

// unixListener implements SocketListener.
type unixListener struct {
	sockets  unixSockets
	service  comch.Service
	lock     *nameLock
	listener *net.UnixListener
}

func (l *unixListener) Accept() (Socket, error) {
	conn, err := l.listener.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return newUnixSocket(conn), nil
}

func (l *unixListener) OpenToEveryUser() error {
	device, err := l.sockets.serviceDirectory(l.service, true)
	if err != nil {
		return err
	}
	defer device.close()
	return device.openToEveryUser(l.service.Name)
}

func (l *unixListener) Address() string { return l.lock.directory.path + "/" + l.service.Name }

// Close removes the name first: a client that finds it can connect.
func (l *unixListener) Close() error {
	l.lock.release()
	return l.listener.Close()
}

// nameLock is the exclusive right to a server name: the lock on NAME.lock. The kernel releases it
// when the process dies, so a dead server never blocks its name.
type nameLock struct {
	directory *directory // owned
	name      string
	lock      int
}

// lockAttempts bounds how often lockName retries when the previous owner has just removed the lock
// file.
const lockAttempts = 100

// lockName locks a name in d. It takes ownership of d if it succeeds.
func lockName(d *directory, name string) (*nameLock, error) {
	for range lockAttempts {
		lock, err := unix.Openat(d.descriptor, name+lockSuffix,
			unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock %s/%s: %w", d.path, name+lockSuffix, err)
		}
		if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			closeDescriptor(lock)
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, status.Errorf(status.AlreadyExist,
					"server %q is already running in %s: stop it or choose another name",
					name, d.path)
			}
			return nil, fmt.Errorf("lock %s/%s: %w", d.path, name+lockSuffix, err)
		}
		if isLinked(d, name+lockSuffix, lock) {
			return &nameLock{directory: d, name: name, lock: lock}, nil
		}
		closeDescriptor(lock)
	}
	return nil, status.Errorf(status.Again, "lock %s/%s: other servers keep removing it",
		d.path, name+lockSuffix)
}

// isLinked reports whether the locked file still has this name.
func isLinked(d *directory, name string, lock int) bool {
	var locked, named unix.Stat_t
	if unix.Fstat(lock, &locked) != nil {
		return false
	}
	if unix.Fstatat(d.descriptor, name, &named, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return false
	}
	return locked.Dev == named.Dev && locked.Ino == named.Ino
}

// listen creates a listening socket under a temporary name and renames it, replacing what a killed
// server may have left. Clients thus find either nothing or a socket that listens. Also, names can
// be longer than a socket address allows.
func (l *nameLock) listen(public bool) (*net.UnixListener, error) {
	var stat unix.Stat_t
	err := unix.Fstatat(l.directory.descriptor, l.name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("check %s/%s: %w", l.directory.path, l.name, err)
	}
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, status.Errorf(status.AlreadyExist,
			"%s/%s: path exists and is not a socket: remove it", l.directory.path, l.name)
	}
	temporary := temporaryName(l.name)
	_ = unix.Unlinkat(l.directory.descriptor, temporary, 0) // a killed server may have left it
	address := net.UnixAddr{Name: l.directory.entry(temporary), Net: "unixpacket"}
	listener, err := net.ListenUnix(address.Net, &address)
	if err != nil {
		_ = unix.Unlinkat(l.directory.descriptor, temporary, 0) // in case it is bound
		return nil, fmt.Errorf("listen in %s: %w", l.directory.path, err)
	}
	listener.SetUnlinkOnClose(false)
	if err := l.publish(temporary, public); err != nil {
		_ = unix.Unlinkat(l.directory.descriptor, temporary, 0)
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// temporaryName returns what the socket of a name is called until it listens. It depends only on
// the name, which is locked, and is short enough for a socket address.
func temporaryName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return ".listen-" + hex.EncodeToString(sum[:8])
}

func (l *nameLock) publish(temporary string, public bool) error {
	at := l.directory.descriptor
	if err := unix.Fchmodat(at, temporary, privateSocketMode, 0); err != nil {
		return fmt.Errorf("set mode of socket in %s: %w", l.directory.path, err)
	}
	if public {
		if err := l.directory.openToEveryUser(temporary); err != nil {
			return err
		}
	}
	if err := unix.Renameat(at, temporary, at, l.name); err != nil {
		return fmt.Errorf("publish socket %s/%s: %w", l.directory.path, l.name, err)
	}
	return nil
}

// release removes the socket and the lock file, and releases the name.
func (l *nameLock) release() {
	_ = unix.Unlinkat(l.directory.descriptor, l.name, 0)
	l.unlock()
}

// unlock removes the lock file and releases the name.
func (l *nameLock) unlock() {
	_ = unix.Unlinkat(l.directory.descriptor, l.name+lockSuffix, 0)
	closeDescriptor(l.lock)
	l.directory.close()
}

// Modes of the sockets.
const (
	privateSocketMode = 0o600
	publicSocketMode  = 0o666
)

// openToEveryUser lets every user connect to a socket in d.
func (d *directory) openToEveryUser(name string) error {
	if err := unix.Fchmodat(d.descriptor, name, publicSocketMode, 0); err != nil {
		return fmt.Errorf("make socket %s/%s accessible to every user: %w", d.path, name, err)
	}
	return nil
}
