// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxLinks is as many symbolic links as the kernel follows.
const maxLinks = 40

// follow returns what a path leads to when the symbolic links at its end are followed. It fails if
// another user can have put something there: a link, so that a file of this user is written, or a
// pipe or a file, so that the other one reads what is written. The kernel does the same for
// directories like /tmp (fs.protected_symlinks), but not for those of a group.
func follow(path string) (string, error) {
	for range maxLinks {
		about, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
		if err != nil {
			return "", fmt.Errorf("examine output: %w", err)
		}
		directory, err := os.Stat(filepath.Dir(path))
		if err != nil {
			return "", fmt.Errorf("examine output: %w", err)
		}
		isLink := about.Mode()&fs.ModeSymlink != 0
		if isPlanted(about, directory) && (isLink || !about.Mode().IsRegular()) {
			return "", fmt.Errorf("output %q belongs to user %d, and others can write to its "+
				"directory: give another path, or remove it", path, ownerOf(about))
		}
		if !isLink {
			return path, nil
		}
		next, err := os.Readlink(path)
		if err != nil {
			return "", fmt.Errorf("examine output: %w", err)
		}
		if !filepath.IsAbs(next) {
			// Not cleaned: its directory may be a link, too.
			next = filepath.Dir(path) + "/" + next
		}
		if _, err := os.Lstat(next); err != nil {
			return path, nil // a link of /proc, or one to nothing, which is replaced
		}
		path = next
	}
	return "", fmt.Errorf("output %q: %w", path, syscall.ELOOP)
}

// isPlanted reports whether another user than root, this one, and the owner of the directory owns
// something in a directory that others can write to.
func isPlanted(about, directory fs.FileInfo) bool {
	const othersMayWrite = 0o022
	owner := ownerOf(about)
	return directory.Mode().Perm()&othersMayWrite != 0 && owner != 0 &&
		owner != uint32(os.Geteuid()) && owner != ownerOf(directory)
}

func ownerOf(about fs.FileInfo) uint32 { return about.Sys().(*syscall.Stat_t).Uid }

// checkOwn fails for a regular file of another user, who could change what is written.
func checkOwn(file *os.File) error {
	about, err := file.Stat()
	if err != nil {
		return fmt.Errorf("examine output: %w", err)
	}
	if owner := ownerOf(about); about.Mode().IsRegular() && owner != uint32(os.Geteuid()) {
		return fmt.Errorf("output %q belongs to user %d, who can change it: give another path, or "+
			"remove it", file.Name(), owner)
	}
	return nil
}

// keepMode gives a file the permissions of the one that it replaces. A file of another user can
// only take some.
func keepMode(file *os.File, replaced fs.FileInfo) error {
	mode := replaced.Mode().Perm()
	if ownerOf(replaced) != uint32(os.Geteuid()) {
		about, err := file.Stat()
		if err != nil {
			return fmt.Errorf("examine output: %w", err)
		}
		mode &= about.Mode().Perm()
	}
	return file.Chmod(mode)
}
