// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// lockKept locks the file beside the kept channels, until it is closed.
func lockKept(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = status.Errorf(status.InUse, "another relay keeps its channels in %s, and has locked "+
			"%s: give each relay a directory of its own", filepath.Dir(path), path)
	} else if err != nil {
		err = &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
