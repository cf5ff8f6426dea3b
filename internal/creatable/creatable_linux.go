// Package creatable says whether this user can create a file, without creating it.
package creatable

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Check returns why this user could not create a file of the given path in its directory.
func Check(path string) error {
	const mayCreate = unix.W_OK | unix.X_OK
	directory := filepath.Dir(path)
	err := unix.Faccessat(unix.AT_FDCWD, directory+"/", mayCreate, unix.AT_EACCESS)
	if err != nil {
		return &fs.PathError{Op: "create a file in", Path: directory, Err: err}
	}
	return nil
}

// CheckWithParents is Check for whoever creates missing directories, too.
func CheckWithParents(path string) error {
	for {
		err := Check(path)
		parent := filepath.Dir(path)
		if !errors.Is(err, fs.ErrNotExist) || parent == path {
			return err
		}
		path = parent
	}
}

// CheckDirectory returns why this user could not create files in a directory, or the directory.
func CheckDirectory(path string) error {
	if err := CheckWithParents(filepath.Join(path, "file")); err != nil {
		return fmt.Errorf("directory %s: %w", path, err)
	}
	return nil
}
