// SPDX-License-Identifier: Apache-2.0

// Package files reads the files that operators write for a program, such as configurations and
// certificates, and checks whether this user can create one, without creating it.
package files

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Read returns the content of a regular file of at most limit bytes. It rejects everything else
// without waiting, because a FIFO or a device can block a reader for ever. A file on a network file
// system whose server does not respond can still block it.
func Read(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK, opening a FIFO waits for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is %s, not a regular file: give the path of a file", path,
			kind(info.Mode()))
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return content, nil
}

// IsExposed reports whether everybody could read a secret in a file of this mode, or others than
// its owner could change it.
func IsExposed(mode os.FileMode) bool { return mode.Perm()&0o027 != 0 }

func kind(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&os.ModeNamedPipe != 0:
		return "a pipe"
	case m&os.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}
