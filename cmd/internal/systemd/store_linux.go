// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Store keeps files open: in this process and, if the service manager has a file descriptor store
// for it (FileDescriptorStoreMax= of the unit), beyond its end, even by SIGKILL. It is a
// volume.Keeper. Its methods may be called concurrently.
type Store struct {
	log *zap.Logger

	mu    sync.Mutex
	files map[string]*os.File // by name
}

// NewStore returns a store with the files that the service manager has kept for a former process.
// Only one may be made.
func NewStore(log *zap.Logger) *Store {
	s := &Store{log: log, files: make(map[string]*os.File)}
	for _, file := range activation.Files(true) {
		if former := s.files[file.Name()]; former != nil {
			_ = former.Close()
		}
		s.files[file.Name()] = file
	}
	return s
}

// Take returns a file whose name begins with prefix, and its name. The file is the caller's from
// then on, and the service manager has no other. It returns nil if there is none.
func (s *Store) Take(prefix string) (file *os.File, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if strings.HasPrefix(name, prefix) {
			file := s.files[name]
			delete(s.files, name)
			s.tell("FDSTOREREMOVE=1\nFDNAME="+name, nil)
			return file, name
		}
	}
	return nil, ""
}

// Keep takes a file over. The name has neither colons nor control characters, and at most 255
// bytes.
func (s *Store) Keep(file *os.File, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = file
	// FDPOLL=0: the manager must not examine the descriptor by itself.
	s.tell("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, unix.UnixRights(int(file.Fd())))
}

// Forget closes the file of that name, if there is one.
func (s *Store) Forget(name string) { s.ForgetIf(func(other string) bool { return other == name }) }

// ForgetIf closes the files whose names meet a condition.
func (s *Store) ForgetIf(condition func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, file := range s.files {
		if condition(name) {
			s.tell("FDSTOREREMOVE=1\nFDNAME="+name, nil)
			delete(s.files, name)
			_ = file.Close() // nothing was written through it
		}
	}
}

// tellTimeout bounds the wait for a service manager whose queue of messages is full.
const tellTimeout = 5 * time.Second

// tell sends a message with descriptors to the service manager, if there is one. The manager
// handles it even if this process is killed right after.
func (s *Store) tell(state string, rights []byte) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if err := send(path, state, rights); err != nil {
		s.log.Warn("use the service manager's file descriptor store",
			zap.String("state", strings.ReplaceAll(state, "\n", " ")), zap.Error(err))
	}
}

func send(path, state string, rights []byte) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	timeout := unix.NsecToTimeval(tellTimeout.Nanoseconds())
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	if err == nil {
		// A name that begins with "@" is abstract.
		err = unix.Sendmsg(fd, []byte(state), rights, &unix.SockaddrUnix{Name: path},
			unix.MSG_NOSIGNAL)
	}
	return errors.Join(err, unix.Close(fd))
}
