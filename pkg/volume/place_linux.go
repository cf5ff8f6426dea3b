// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// place is where a file or device was when a volume opened it. What is written to a file that was
// removed is gone once the volume closes, and what is written to one that was replaced is not there
// when the volume opens again. No system call on the open file fails because of that.
//
// The place is a name in a directory, which is kept open: whatever is mounted over the directory,
// and whatever its own name becomes, does not touch the file.
type place struct {
	directory *os.File // nil if the place cannot be examined
	name      []byte   // with a terminating zero
	path      string   // by which the volume was opened
	isDevice  bool
	was       entry
}

// entry identifies what has a name.
type entry struct {
	major, minor uint32
	inode        uint64
	links        uint32
}

// newPlace returns the place of a file or device that was opened by a path.
func newPlace(file *os.File, path string) (*place, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("examine %q: %w", path, err)
	}
	real := ""
	if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		// Its entry in sysfs comes and goes with the device. That in /dev may be anything.
		real = fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		if _, err := os.Lstat(real); errors.Is(err, fs.ErrNotExist) { // there is no sysfs
			return &place{}, nil
		}
	} else {
		var err error
		if real, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
	}
	p, err := placeAt(real, path)
	if err != nil {
		return nil, err
	}
	p.isDevice = stat.Mode&unix.S_IFMT == unix.S_IFBLK
	isFile := stat.Mode&unix.S_IFMT == unix.S_IFREG
	if isFile && (p.was.inode != stat.Ino || unix.Mkdev(p.was.major, p.was.minor) != stat.Dev) {
		return nil, errors.Join(errGone(path, "was replaced by another one"), p.close())
	}
	return p, nil
}

// placeAt returns the place of what has the path real.
func placeAt(real, path string) (*place, error) {
	directory, err := os.OpenFile(filepath.Dir(real),
		unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p := &place{directory: directory, name: append([]byte(filepath.Base(real)), 0), path: path}
	if err := p.look(&p.was); err != nil {
		return nil, errors.Join(fmt.Errorf("examine %q: %w", real, err), p.close())
	}
	return p, nil
}

func (p *place) look(found *entry) error {
	return retryInterrupted(func() error {
		return statEntry(int(p.directory.Fd()), p.name, found)
	})
}

// check returns an error that wraps unix.ESTALE if the file or device is not in its place any more.
// Not to be able to tell, for instance because the directory must not be searched for the moment,
// is no error. check may block, for instance on a network file system.
func (p *place) check() error {
	if p.directory == nil {
		return nil
	}
	var now entry
	err := p.look(&now)
	switch {
	case p.isDevice && errors.Is(err, unix.ENOENT):
		return errGone(p.path, detached)
	case errors.Is(err, unix.ENOENT):
		return errGone(p.path, "was removed or renamed")
	case err == nil && (now.inode != p.was.inode || now.major != p.was.major ||
		now.minor != p.was.minor):
		return errGone(p.path, "was replaced by another one")
	case err == nil && now.links == 0 && p.was.links > 0: // it is mounted here by itself
		return errGone(p.path, "was removed")
	}
	return nil
}

func (p *place) close() error {
	if p.directory == nil {
		return nil
	}
	return p.directory.Close()
}

// detached is what has become of a device that is gone.
const detached = "was detached"

func errGone(path, what string) error {
	return status.Errorf(status.IOFailed, "%q %s, so whoever opens the volume next would not find "+
		"what is written now: bring it back, and reopen the volume (target volume remove, target "+
		"volume add) or restart the target: %w", path, what, unix.ESTALE)
}
