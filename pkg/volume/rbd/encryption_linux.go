// SPDX-License-Identifier: Apache-2.0

package rbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// encryption is what the start of an image says about its encryption.
type encryption struct {
	version int // of LUKS; 0 without encryption
	// isClone reports that the image is a clone that RBD has encrypted. Its parent need not be.
	isClone bool
}

// findEncryption looks for a header of LUKS.
func findEncryption(start []byte) encryption {
	magic, version := start[:6], int(binary.BigEndian.Uint16(start[6:]))
	isLUKS := bytes.Equal(magic, []byte("LUKS\xba\xbe"))
	isClone := bytes.Equal(magic, []byte("RBDL\xba\xbe")) // Ceph 17 and later
	if !isLUKS && !isClone || version < 1 || version > 2 {
		return encryption{}
	}
	return encryption{version, isClone}
}

// maxPassphrase is the most bytes of a passphrase.
const maxPassphrase = 4096

// readPassphrase returns the content of the file without a newline at its end, as Ceph's tools read
// it, and whether others can read or change the file. The caller clears the content.
func (b Backend) readPassphrase() (passphrase []byte, mode fs.FileMode, err error) {
	const hint = "give a file that the target can read, with the passphrase of rbd encryption format"
	content, err := files.Read(b.PassphraseFile, maxPassphrase+1)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(b.PassphraseFile); err == nil {
			mode = info.Mode().Perm()
		}
	}
	passphrase = bytes.TrimSuffix(content, []byte("\n"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = status.Errorf(status.NotFound, "image %s: read the passphrase: %v: %s", b.path(), err,
			hint)
	case errors.Is(err, fs.ErrPermission):
		err = status.Errorf(status.NotPermitted, "image %s: read the passphrase: %v: %s", b.path(),
			err, hint)
	case err != nil:
		err = status.Errorf(status.BadConfig, "image %s: read the passphrase: %w: %s", b.path(), err,
			hint)
	case len(passphrase) == 0:
		err = status.Errorf(status.BadConfig, "image %s: the passphrase file %s is empty: %s",
			b.path(), b.PassphraseFile, hint)
	case len(passphrase) > maxPassphrase:
		err = status.Errorf(status.BadConfig, "image %s: the passphrase in %s is longer than %d bytes: "+
			"give the image a shorter one", b.path(), b.PassphraseFile, maxPassphrase)
	}
	if err != nil {
		clear(content)
		return nil, 0, err
	}
	return passphrase, mode, nil
}

// checkEncryption returns an error if the image cannot be opened as it was configured.
func (b Backend) checkEncryption(found encryption) error {
	switch {
	case found.version == 0 && b.PassphraseFile != "":
		return status.Errorf(status.BadConfig, "image %[1]s is not encrypted, but has "+
			"passphrase-file=%[2]s: remove that option to serve the image as it is; or encrypt it, "+
			"which destroys its content (rbd encryption format %[1]s luks2 %[2]s)", b.path(),
			b.PassphraseFile)
	case found.isClone && b.PassphraseFile == "":
		return status.Errorf(status.BadConfig, "image %s is encrypted (RBD's LUKS%d): give its "+
			"passphrase by passphrase-file=PATH", b.path(), found.version)
	}
	return nil
}

// errTooOld means that librbd does not know encryption.
var errTooOld = errors.New("librbd has no rbd_encryption_load")

// explainDecrypt names the likely cause why an image cannot be decrypted.
func (b Backend) explainDecrypt(version int, err error) error {
	what := fmt.Sprintf("decrypt image %s (LUKS%d)", b.path(), version)
	switch {
	case errors.Is(err, errTooOld):
		return status.Errorf(status.NotSupported, "%s: %w: install librbd1 of Ceph 16 or later", what,
			err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return status.Errorf(status.NotPermitted, "%s: the passphrase in %s is wrong: correct the "+
			"file, or its path in passphrase-file=", what, b.PassphraseFile)
	case errors.Is(err, unix.ENOTSUP):
		return status.Errorf(status.NotSupported, "%s: this librbd does not know the format, or was "+
			"built without libcryptsetup: install a newer librbd1, or make the image with rbd "+
			"encryption format: %w", what, err)
	case errors.Is(err, unix.EINVAL):
		return status.Errorf(status.NotSupported, "%s: librbd cannot use the header, which another "+
			"program may have made (rbd encryption format makes one): %w", what, err)
	case errors.Is(err, unix.ENOMEM):
		return status.Errorf(status.NoMemory, "%s: too little memory, of which LUKS2 may need 1 GiB "+
			"for a second (MemoryMax= of the unit, ulimit -v): %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
