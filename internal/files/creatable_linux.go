// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// CheckCreatable returns why this user could not create a file of the given path in its directory.
func CheckCreatable(path string) error {
	const mayCreate = unix.W_OK | unix.X_OK
	directory := filepath.Dir(path)
	err := unix.Faccessat(unix.AT_FDCWD, directory+"/", mayCreate, unix.AT_EACCESS)
	if err != nil {
		return &fs.PathError{Op: "create a file in", Path: directory, Err: err}
	}
	return nil
}

// CheckCreatableWithParents is CheckCreatable for whoever creates missing directories, too.
func CheckCreatableWithParents(path string) error {
	for {
		err := CheckCreatable(path)
		parent := filepath.Dir(path)
		if !errors.Is(err, fs.ErrNotExist) || parent == path {
			return err
		}
		path = parent
	}
}

// CheckDirectory returns why this user could not create files in a directory, or the directory.
func CheckDirectory(path string) error {
	if err := CheckParent(path); err != nil {
		return err
	}
	if err := CheckCreatableWithParents(filepath.Join(path, "file")); err != nil {
		return fmt.Errorf("directory %s: %w", path, err)
	}
	return nil
}

// CheckParent returns an error if the directory around path does not exist. Who creates the
// directory that a user names, but none above it, does not turn a mistake in the path into a tree.
func CheckParent(path string) error {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("directory %q: %w", path, err)
	}
	parent := filepath.Dir(absolute)
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(status.NotFound,
			"directory %q: %w: create %s first, or correct the path", path, err, parent)
	}
	if about, err := os.Stat(absolute); err == nil && !about.IsDir() {
		return status.Errorf(status.InvalidValue,
			"directory %q: it is a file, not a directory: correct the path", path)
	}
	return nil
}
