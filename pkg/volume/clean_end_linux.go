// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// CleanEnds holds proofs that volumes were closed cleanly: everything that was ever written under
// the write verifier in the proof is durable. The next program that opens the volume keeps the
// verifier, so that its clients miss no writes. The proofs are in a directory of this machine, not
// beside the volumes' files, where they would travel with copies. The methods may be called
// concurrently.
type CleanEnds struct {
	directory string // "" if the proofs end with the process

	mu     sync.Mutex
	proofs map[UUID]cleanEndProof // used without a directory
}

// maxCleanEnds bounds the proofs. Volumes that never come back leave theirs behind.
const maxCleanEnds = 4096

// NewCleanEnds keeps proofs in a directory, which it creates. If directory is "", they end with the
// process.
func NewCleanEnds(directory string) (*CleanEnds, error) {
	if directory != "" {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return nil, fmt.Errorf("create the directory for proofs of clean ends: %w", err)
		}
	}
	return &CleanEnds{directory: directory, proofs: make(map[UUID]cleanEndProof)}, nil
}

// cleanEndProof says which version of a volume's content is complete, and under which write
// verifier.
type cleanEndProof struct {
	Verifier uint64 `json:"write_verifier"`
	// Size and Changed are those of a file: its bytes and its change time, in ns. Nobody can set
	// the latter, so it shows if something has brought back older content. It is 0 of a device.
	Size    int64 `json:"size_bytes"`
	Changed int64 `json:"changed_ns,omitempty"`
	// Boot and Sequence are those of a device: until the next boot, Sequence is unique to it since
	// it was attached.
	Boot     string `json:"boot,omitempty"`
	Sequence uint64 `json:"device_sequence,omitempty"`
}

// newCleanEndProof describes the present content of an open file.
func newCleanEndProof(file *os.File, verifier uint64) (cleanEndProof, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return cleanEndProof{}, fmt.Errorf("examine %q: %w", file.Name(), err)
	}
	p := cleanEndProof{Verifier: verifier, Size: stat.Size}
	if stat.Mode&unix.S_IFMT == unix.S_IFREG {
		p.Changed = stat.Ctim.Nano()
		return p, nil
	}
	var err error
	if p.Boot, err = bootID(); err != nil {
		return cleanEndProof{}, err
	}
	p.Sequence, err = diskSequence(int(file.Fd()))
	return p, err
}

func (c *CleanEnds) path(uuid UUID) string {
	return filepath.Join(c.directory, "volume-"+uuid.String()+".json")
}

// find returns the proof of a volume, if there is one.
func (c *CleanEnds) find(uuid UUID) (cleanEndProof, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.directory == "" {
		p, found := c.proofs[uuid]
		return p, found
	}
	var p cleanEndProof
	text, err := os.ReadFile(c.path(uuid))
	if err != nil || json.Unmarshal(text, &p) != nil {
		return cleanEndProof{}, false
	}
	return p, p.Verifier != 0
}

// keep stores the proof of a volume, durably.
func (c *CleanEnds) keep(uuid UUID, p cleanEndProof) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.directory == "" {
		for other := range c.proofs {
			if len(c.proofs) < maxCleanEnds {
				break
			}
			delete(c.proofs, other)
		}
		c.proofs[uuid] = p
		return nil
	}
	if err := c.makeRoom(); err != nil {
		return err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return files.Replace(c.path(uuid), text, 0o600)
}

// makeRoom removes the oldest proofs if there are too many.
func (c *CleanEnds) makeRoom() error {
	entries, err := os.ReadDir(c.directory)
	if err != nil || len(entries) < maxCleanEnds {
		return err
	}
	age := func(e os.DirEntry) time.Time {
		info, err := e.Info()
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return age(a).Compare(age(b)) })
	for _, e := range entries[:len(entries)-maxCleanEnds+1] {
		if strings.HasPrefix(e.Name(), "volume-") {
			err = errors.Join(err, os.Remove(filepath.Join(c.directory, e.Name())))
		}
	}
	return err
}

// withdraw removes the proof of a volume, durably: if it came back after a loss of power, it would
// hide that writes since then are lost.
func (c *CleanEnds) withdraw(uuid UUID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.proofs, uuid)
	if c.directory == "" {
		return nil
	}
	err := os.Remove(c.path(uuid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDirectory(c.directory)
}

// cleanEnd is the proof of one open volume. Its zero value is that of a volume that never changes.
type cleanEnd struct {
	ends     *CleanEnds // nil if nobody keeps proofs
	uuid     UUID
	verifier uint64 // of the volume

	withdrawing sync.Mutex
	stands      atomic.Bool // there is a proof
}

// newCleanEnd decides about the write verifier of a volume that has just been opened: it stays as
// it was if the proof of a clean end or a witness shows that no write is lost.
func newCleanEnd(spec *Spec, file *os.File, uuid UUID) (*cleanEnd, witness) {
	e := &cleanEnd{ends: spec.CleanEnds, uuid: uuid}
	proven := e.examine(spec, file)
	var w witness
	w, e.verifier = newWitness(spec, file, uuid, proven)
	if e.verifier != proven {
		if err := e.withdraw(); err != nil { // the first change tries again
			spec.Logger.Warn("a proof has become useless", zap.String("volume", spec.Name),
				zap.Error(err))
		}
	}
	return e, w
}

// examine returns the write verifier in the proof, 0 if there is none, or not of this content.
func (e *cleanEnd) examine(spec *Spec, file *os.File) uint64 {
	if e.ends == nil {
		return 0
	}
	former, found := e.ends.find(e.uuid)
	if !found {
		return 0
	}
	e.stands.Store(true)
	now, err := newCleanEndProof(file, former.Verifier)
	if err == nil && now == former {
		return former.Verifier
	}
	spec.Logger.Warn("something has changed the volume since it was closed: clients will be told "+
		"that writes which were not flushed may be lost", zap.String("volume", spec.Name),
		zap.Error(err))
	return 0
}

// withdraw ends the proof: what follows is not durable yet. It may block.
func (e *cleanEnd) withdraw() error {
	if !e.stands.Load() {
		return nil
	}
	e.withdrawing.Lock()
	defer e.withdrawing.Unlock()
	if !e.stands.Load() {
		return nil
	}
	if err := e.ends.withdraw(e.uuid); err != nil {
		return status.Errorf(status.IOFailed, "the proof that the volume was closed cleanly must be "+
			"removed before the volume changes (state.directory): %w", err)
	}
	e.stands.Store(false)
	return nil
}

// prove stores the proof, unless an earlier one stands, because nothing has changed since. All
// content is durable.
func (e *cleanEnd) prove(file *os.File, log *zap.Logger) error {
	if e.ends == nil || e.stands.Load() {
		return nil
	}
	// Unlike fdatasync(2), this includes the change time.
	if err := retryInterrupted(func() error { return unix.Fsync(int(file.Fd())) }); err != nil {
		return fmt.Errorf("flush %q: %w", file.Name(), err)
	}
	p, err := newCleanEndProof(file, e.verifier)
	if err == nil {
		err = e.ends.keep(e.uuid, p)
	}
	if err != nil {
		log.Warn("all writes are durable, but the proof of that cannot be kept: clients will be told "+
			"that writes which were not flushed may be lost", zap.Error(err))
	}
	return nil
}
