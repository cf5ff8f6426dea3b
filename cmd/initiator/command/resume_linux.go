// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// stateSuffix is what the name of a transfer's file has, with it, for the file that says how far
// the transfer got.
const stateSuffix = ".resume"

// stateSchema names the format of transferState.
const stateSchema = "zc-relay.resume/1"

// transferState says how far an interrupted transfer got, and what it was.
type transferState struct {
	Schema    string `json:"schema"`
	Operation string `json:"operation"`
	Volume    string `json:"volume_uuid"`
	Offset    uint64 `json:"offset_bytes"`
	Length    uint64 `json:"length_bytes"`
	// Source is the file of put as it was.
	Source *fileIdentity `json:"source,omitempty"`
	// Done is how many bytes from Offset on are durable at the destination.
	Done uint64 `json:"done_bytes"`

	path string
}

// fileIdentity changes whenever a file, or its content, does.
type fileIdentity struct {
	Device    uint64 `json:"device"`
	Inode     uint64 `json:"inode"`
	Size      int64  `json:"size_bytes"`
	ChangedNs int64  `json:"changed_ns"`
}

func identityOf(file *os.File) (*fileIdentity, error) {
	about, err := file.Stat()
	if err != nil {
		return nil, err
	}
	s, ok := about.Sys().(*syscall.Stat_t)
	if !ok || !about.Mode().IsRegular() {
		return nil, program.Usagef("--resume: %q is not a regular file", file.Name())
	}
	return &fileIdentity{Device: s.Dev, Inode: s.Ino, Size: s.Size,
		ChangedNs: s.Ctim.Nano()}, nil
}

// maxStateBytes bounds the file of a state.
const maxStateBytes = 64 << 10

// resume completes the state of a transfer that begins, by that of a former one of the same file,
// if there is one. It fails if that was another transfer.
func (s *transferState) resume(file string, info *client.Info) error {
	s.Schema, s.Volume = stateSchema, info.UUID.String()
	s.path = file + stateSuffix
	former, err := readState(s.path)
	if former == nil || err != nil {
		return err
	}
	changed := ""
	switch {
	case former.Operation != s.Operation:
		changed = fmt.Sprintf("what was interrupted was %s", former.Operation)
	case former.Volume != s.Volume:
		changed = fmt.Sprintf("that was with the volume %s, and volume %q is %s", former.Volume,
			info.Name, s.Volume)
	case former.Source != nil && s.Source != nil && *former.Source != *s.Source:
		changed = fmt.Sprintf("%q has changed since", file)
	case former.Offset != s.Offset || former.Length != s.Length:
		changed = fmt.Sprintf("that was about %d bytes at offset %d, and this is about %d at %d",
			former.Length, former.Offset, s.Length, s.Offset)
	case former.Done > s.Length:
		changed = "its state is damaged"
	default:
		s.Done = former.Done
		return nil
	}
	return s.another(changed)
}

// another returns the error for a transfer that cannot go on.
func (s *transferState) another(why string) error {
	return program.Usagef("cannot resume the transfer that %q describes: %s (remove that file to "+
		"begin anew)", s.path, why)
}

func readState(path string) (*transferState, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, program.Usage(err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxStateBytes))
	if err != nil {
		return nil, err
	}
	var s transferState
	if err := json.Unmarshal(content, &s); err != nil || s.Schema != stateSchema {
		return nil, program.Usagef("%q is not the state of a transfer that this program can "+
			"resume (remove it to begin anew)", path)
	}
	return &s, nil
}

// save replaces the file of the state.
func (s *transferState) save() error {
	file, err := output.Create(s.path)
	if err != nil {
		return err
	}
	return file.Finish(report.WriteJSON(file.Sink(), s))
}

// remove removes the file of a transfer that is complete.
func (s *transferState) remove() error {
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// checkpoints returns what saves the state of a transfer that begins behind what is done. sync
// makes the destination durable.
func (s *transferState) checkpoints(sync func() error) func(uint64) error {
	begun := s.Done
	return func(moved uint64) error {
		if err := sync(); err != nil {
			return err
		}
		s.Done = begun + moved
		return s.save()
	}
}

// The samples of what is done that resuming compares: pieces at equal distances, and the last ones.
const (
	samplePieces = 64
	sampleLength = 4 * size.KiB
	sampleTail   = size.MiB
)

// compare compares samples of what is done in the volume and in the file, and so notices most
// changes of either since.
func (s *transferState) compare(v volume, file io.ReaderAt) error {
	if s.Done == 0 {
		return nil
	}
	piece := func(start, length uint64) error {
		inFile, inVolume := make([]byte, length), make([]byte, length)
		if _, err := file.ReadAt(inFile, int64(start)); err != nil {
			if errors.Is(err, io.EOF) {
				return s.another("the file has become shorter")
			}
			return fmt.Errorf("compare the file: %w", err)
		}
		if _, err := v.ReadAt(inVolume, int64(s.Offset+start)); err != nil {
			return fmt.Errorf("compare the volume: %w", err)
		}
		if !bytes.Equal(inFile, inVolume) {
			return s.another(fmt.Sprintf("file and volume differ in the %d bytes from offset %d "+
				"of the volume on, which were transferred before", length, s.Offset+start))
		}
		return nil
	}
	for i := range uint64(samplePieces) {
		start := s.Done / samplePieces * i
		if length := min(uint64(sampleLength), s.Done-start); length > 0 {
			if err := piece(start, length); err != nil {
				return err
			}
		}
	}
	tail := min(uint64(sampleTail), s.Done)
	return piece(s.Done-tail, tail)
}
