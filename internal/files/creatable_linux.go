package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
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
	if err := CheckCreatableWithParents(filepath.Join(path, "file")); err != nil {
		return fmt.Errorf("directory %s: %w", path, err)
	}
	return nil
}
