// SPDX-License-Identifier: Apache-2.0

// Package output writes files that appear, or change, only once they are complete and on disk.
package output

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
)

// File is a file being written. What was at its path before stays there until all of the new
// content is on disk.
type File struct {
	file *os.File
	path string // what the file becomes; "" if it is written in place
	kept bool   // if it cannot be finished
}

// newFileMode is the mode of new files, before the umask.
const newFileMode = 0o666

// Check fails for a path that cannot become a file, because it is a directory or has none.
func Check(path string) error {
	if about, err := os.Stat(path); err == nil && about.IsDir() {
		return fmt.Errorf("output %q is a directory", path)
	}
	directory := filepath.Dir(path)
	about, err := os.Stat(directory)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("output %q: %w: create the directory first", path, err)
	}
	if err == nil && !about.IsDir() {
		err = fmt.Errorf("%q is not a directory", directory)
	}
	return err
}

// Create starts to write the file at path. A device or a pipe is written in place.
func Create(path string) (*File, error) {
	about, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return createBeside(path, nil)
	case err != nil:
		return nil, fmt.Errorf("examine output: %w", err)
	case about.IsDir():
		return nil, fmt.Errorf("output %q is a directory", path)
	case !about.Mode().IsRegular():
		if _, err := follow(path); err != nil {
			return nil, err
		}
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("open output: %w", err)
		}
		return &File{file: file}, nil
	}
	// A symbolic link is to stay one.
	if path, err = follow(path); err != nil {
		return nil, err
	}
	return createBeside(path, about)
}

// Begin opens the file at path for what is to be read while it is being written, and removes its
// former content.
func Begin(path string) (*os.File, error) {
	path, err := follow(path)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW, newFileMode)
	if err != nil {
		return nil, err
	}
	if err = checkOwn(file); err == nil {
		if about, _ := file.Stat(); about != nil && about.Mode().IsRegular() {
			err = file.Truncate(0)
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// PartialSuffix is what Continue appends to the name of a file until it is complete.
const PartialSuffix = ".partial"

// Continue starts to write the regular file at path, or goes on with what a former Continue has
// left, which Size tells. It writes to a file of the same name and PartialSuffix, which nobody else
// can continue meanwhile, and which stays there if Finish gets an error.
func Continue(path string) (*File, error) {
	about, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("examine output: %w", err)
	case !about.Mode().IsRegular():
		return nil, fmt.Errorf("output %q is not a regular file, and cannot be continued", path)
	default:
		// A symbolic link is to stay one.
		if path, err = follow(path); err != nil {
			return nil, err
		}
	}
	file, err := os.OpenFile(path+PartialSuffix, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW,
		newFileMode)
	if err != nil {
		return nil, fmt.Errorf("create output: %w", err)
	}
	if err = checkOwn(file); err == nil {
		err = Lock(file)
	}
	if err == nil && about != nil {
		err = keepMode(file, about)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &File{file: file, path: path, kept: true}, nil
}

// Size returns how many bytes the unfinished file has.
func (o *File) Size() (int64, error) {
	about, err := o.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("examine output: %w", err)
	}
	return about.Size(), nil
}

// ReadAt reads what has been written.
func (o *File) ReadAt(p []byte, offset int64) (int, error) { return o.file.ReadAt(p, offset) }

// Sync makes what has been written durable.
func (o *File) Sync() error { return o.file.Sync() }

// Rest is the part of a file from an offset on, which it counts from.
type Rest struct {
	*io.OffsetWriter
	file *os.File
	base int64
}

// Rest returns the writer for the content from base on.
func (o *File) Rest(base int64) *Rest {
	return &Rest{OffsetWriter: io.NewOffsetWriter(o.file, base), file: o.file, base: base}
}

// Truncate changes the length of this part.
func (r *Rest) Truncate(size int64) error { return r.file.Truncate(r.base + size) }

// createBeside creates a temporary file in the directory of path, with the mode of the file that it
// will replace, if any.
func createBeside(path string, replaced os.FileInfo) (*File, error) {
	name := fmt.Sprintf(".%s.%08x.partial", filepath.Base(path), rand.Uint32())
	file, err := os.OpenFile(filepath.Join(filepath.Dir(path), name),
		os.O_RDWR|os.O_CREATE|os.O_EXCL, newFileMode)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: create the directory first", err)
	}
	if err != nil {
		return nil, fmt.Errorf("create output: %w", err)
	}
	o := &File{file: file, path: path}
	if replaced != nil {
		if err := keepMode(file, replaced); err != nil {
			return nil, o.Finish(err)
		}
	}
	return o, nil
}

// Sink returns the writer for the content. It is an io.WriterAt too, unless the file is written in
// place.
func (o *File) Sink() io.Writer {
	if o.path == "" {
		return Stream{Writer: o.file}
	}
	return o.file
}

// Finish moves the complete file into place. If err is not nil, Finish removes the file, unless it
// can be continued, and returns err.
func (o *File) Finish(err error) error {
	if err == nil && o.path != "" {
		err = o.file.Sync()
	}
	err = errors.Join(err, o.file.Close())
	if o.path == "" {
		return err
	}
	if err == nil {
		err = os.Rename(o.file.Name(), o.path)
	}
	if err != nil && o.kept {
		return err
	}
	if err != nil {
		return errors.Join(err, os.Remove(o.file.Name()))
	}
	return syncDirectory(filepath.Dir(o.path))
}

// syncDirectory makes the new name of a file durable.
func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	err = directory.Sync()
	return errors.Join(err, directory.Close())
}

// Stream hides WriteAt, which a pipe does not support.
type Stream struct{ io.Writer }
