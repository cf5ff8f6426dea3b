// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Keeper keeps files open beyond the life of a volume and, if it can, of the process, like the file
// descriptor store of a service manager. Its methods may be called concurrently.
type Keeper interface {
	// Take returns a file that is kept under a name with the given prefix, and its name. The file
	// is the caller's from then on, and the keeper has no other. It returns nil if there is none.
	Take(prefix string) (file *os.File, name string)
	// Keep takes a file over, until Take or Forget.
	Keep(file *os.File, name string)
	// Forget closes the file of that name, if there is one.
	Forget(name string)
}

// KeptPrefix is how the names begin under which a Keeper has the files of a volume.
func KeptPrefix(uuid UUID) string { return fmt.Sprintf("zc-relay-volume-%v-", uuid) }

// witness is an open file description of a volume's file that a Keeper has. It proves to the next
// process that opens the volume that nothing was lost in between:
//
//   - While it is open, the file's inode stays in memory, and the file system mounted, so what was
//     written stays in the page cache until it has reached the device. It ends with the system.
//   - The kernel notes in the inode that it could not write back a page, and in each description
//     whether fsync(2) on that one has said so. A file that is opened later hears only of errors
//     that nobody has heard of. But the witness is older than all writes that it vouches for, and
//     nobody else has used it, so it hears of every error (errseq_t, Documentation/core-api of
//     Linux).
//
// The name under which it is kept has the write verifier that goes with it.
type witness struct {
	keeper Keeper // nil if there is no witness
	name   string
}

// newWitness returns the write verifier of a volume that has just been opened: the one kept with
// the witness of a former process if that proves all its writes durable, a new one if it does not,
// and without such a witness the proven one, which is 0 if there is none. From then on there is a
// witness for the next process.
func newWitness(spec *Spec, file *os.File, uuid UUID, proven uint64) (w witness, verifier uint64) {
	verifier = cmp.Or(proven, newVerifier())
	if spec.Keeper == nil {
		return witness{}, verifier
	}
	prefix := KeptPrefix(uuid)
	kept, name := spec.Keeper.Take(prefix)
	if kept != nil {
		// If this process is killed here, there is no witness, and a loss is reported.
		former, err := strconv.ParseUint(name[len(prefix):], 16, 64)
		if err == nil {
			err = testify(kept, file)
		}
		if err == nil {
			verifier = former
		} else {
			spec.Logger.Error("writes before the restart that were not flushed may be lost: "+
				"clients will be told", zap.String("volume", spec.Name), zap.Error(err))
			verifier = newVerifier()
			_ = kept.Close() // nothing was written through it
			kept = nil
		}
	}
	if kept == nil {
		var err error
		if kept, err = openAgain(file); err != nil {
			spec.Logger.Warn("a restart will be reported to clients as a loss of writes",
				zap.String("volume", spec.Name), zap.Error(err))
			return witness{}, verifier
		}
	}
	w = witness{spec.Keeper, prefix + strconv.FormatUint(verifier, 16)}
	w.keeper.Keep(kept, w.name)
	return w, verifier
}

// newVerifier returns a random number that is not 0.
func newVerifier() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:]) | 1
}

// openAgain opens the file of an open file once more, without its lock.
func openAgain(file *os.File) (*os.File, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	return os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// testify returns an error unless everything is durable that was written since kept was opened, and
// file is the same object.
func testify(kept, file *os.File) error {
	if err := isSameObject(kept, file); err != nil {
		return err
	}
	fd := int(kept.Fd())
	if err := retryInterrupted(func() error { return unix.Fdatasync(fd) }); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return readNothing(fd)
}

// isSameObject returns an error unless two open files are the same file, or the same device since
// it was attached.
func isSameObject(a, b *os.File) error {
	statA, err := a.Stat()
	if err != nil {
		return err
	}
	statB, err := b.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(statA, statB) {
		return fmt.Errorf("%q is another file than before", b.Name())
	}
	if statB.Mode().IsRegular() {
		return nil
	}
	sequenceA, err := diskSequence(int(a.Fd()))
	if err != nil {
		return err
	}
	sequenceB, err := diskSequence(int(b.Fd()))
	if err != nil {
		return err
	}
	if sequenceA != sequenceB {
		return fmt.Errorf("device %q was detached and attached again", b.Name())
	}
	return nil
}

// renounce ends the witness: the next process must report a loss.
func (w *witness) renounce() {
	if w.keeper != nil {
		w.keeper.Forget(w.name)
	}
}
