package emulated

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (p *provider) Listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	s, err := p.listen(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("listen as Comch server %q: %w", config.Name, err)
	}
	return s, nil
}

func (p *provider) listen(ctx context.Context, config comch.ServerConfig) (*server, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.prepareServer(&config); err != nil {
		return nil, err
	}
	public := config.AllowsOthers()
	device, err := p.serverDirectory(&config, public)
	if err != nil {
		return nil, err
	}
	lock, err := lockName(device, config.Name)
	if err != nil {
		device.close()
		return nil, err
	}
	listener, err := lock.listen(public)
	if err != nil {
		lock.unlock()
		return nil, err
	}
	return newServer(p, config, lock, listener), nil
}

// prepareServer sets defaults and rejects invalid values.
func (p *provider) prepareServer(config *comch.ServerConfig) error {
	setDefault(&config.Device, DefaultDevice)
	setDefault(&config.Representor, DefaultRepresentor)
	setDefault(&config.MaxMessageSize, p.limits.MaxMessageSize)
	setDefault(&config.ReceiveQueue, min(defaultReceiveQueue, p.limits.MaxReceiveQueue))
	if err := p.prepareAdmission(&config.Admission); err != nil {
		return err
	}
	if err := checkName("device", config.Device); err != nil {
		return err
	}
	if err := checkName("representor", config.Representor); err != nil {
		return err
	}
	if err := checkName("server name", config.Name); err != nil {
		return err
	}
	return p.checkGreeting(greeting{config.MaxMessageSize, config.ReceiveQueue})
}

func (p *provider) prepareAdmission(a *comch.Admission) error {
	setDefault(&a.MaxClients, min(defaultMaxClients, p.limits.MaxClients))
	setDefault(&a.MaxExportBytes, p.limits.MaxExportBytes)
	return checkCount("MaxClients", a.MaxClients, p.limits.MaxClients)
}

// serverDirectory opens the directory of a server. It creates missing directories, and makes all of
// them accessible to every user if public.
func (p *provider) serverDirectory(config *comch.ServerConfig, public bool) (*directory, error) {
	root, err := makeRoot(p.directory, public)
	if err != nil {
		return nil, err
	}
	defer root.close()
	host, err := root.make(config.Representor, public)
	if err != nil {
		return nil, err
	}
	defer host.close()
	return host.make(config.Device, public)
}

// openToEveryUser makes the files of a running server accessible to every user. The server itself
// decides who may connect.
func (p *provider) openToEveryUser(config *comch.ServerConfig) error {
	device, err := p.serverDirectory(config, true)
	if err != nil {
		return err
	}
	defer device.close()
	return device.openToEveryUser(config.Name)
}

// lockSuffix is the suffix of lock files.
const lockSuffix = ".lock"

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
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	temporary := ".listen-" + hex.EncodeToString(random[:])
	address := net.UnixAddr{Name: l.directory.entry(temporary), Net: "unixpacket"}
	listener, err := net.ListenUnix(address.Net, &address)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", l.directory.path, err)
	}
	listener.SetUnlinkOnClose(false)
	if err := l.publish(temporary, public); err != nil {
		_ = unix.Unlinkat(l.directory.descriptor, temporary, 0)
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
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
