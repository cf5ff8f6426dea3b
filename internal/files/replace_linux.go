// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// sync makes a file, or the entries of a directory, durable. Tests replace it.
var sync = (*os.File).Sync

// Replace gives a file of this process's own new content, or creates it. Whatever happens
// meanwhile, the file then has either the former content or the new one. When Replace returns nil,
// it durably has the new one. If Replace fails, which of them it has may not be known. Nobody else
// may replace the same file concurrently.
func Replace(path string, content []byte, mode fs.FileMode) (err error) {
	temporary := path + ".new"
	// A process that was killed has left it.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := create(temporary, content, mode); err != nil {
		return errors.Join(err, removeIfThere(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(err, removeIfThere(temporary))
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer directory.Close()
	return sync(directory)
}

func create(path string, content []byte, mode fs.FileMode) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(content); err != nil {
		return err
	}
	return sync(file)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// othersMayWrite are the permissions by which others could change a file.
const othersMayWrite = 0o022

// ReadOwn is Read for a file that the program itself has written: it rejects one that another user
// owns or can change, except root.
func ReadOwn(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil, fmt.Errorf("%s is a symbolic link: put the file in its place", path)
	}
	owner, own := info.Sys().(*syscall.Stat_t).Uid, os.Geteuid()
	if owner != 0 && int(owner) != own {
		return nil, fmt.Errorf("%s belongs to user %d, and this process runs as user %d: if its "+
			"content can be trusted, chown %d %s", path, owner, own, own, path)
	}
	if mode := info.Mode().Perm(); mode&othersMayWrite != 0 {
		return nil, fmt.Errorf("%s can be changed by other users (mode %04o): if its content can "+
			"be trusted, chmod 600 %s", path, mode, path)
	}
	return Read(path, limit)
}
