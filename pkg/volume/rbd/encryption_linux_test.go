// SPDX-License-Identifier: Apache-2.0

package rbd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestLUKSHeadersAreRecognized(t *testing.T) {
	for start, want := range map[string]encryption{
		"LUKS\xba\xbe\x00\x01":       {version: 1},
		"LUKS\xba\xbe\x00\x02":       {version: 2},
		"RBDL\xba\xbe\x00\x02":       {version: 2, isClone: true},
		"LUKS\xba\xbe\x00\x03":       {},
		"LUKS\xba\xbf\x00\x02":       {},
		strings.Repeat("\x00", 8):    {},
		"zc-relay, not an encrypted": {},
	} {
		if got := findEncryption([]byte(start)); got != want {
			t.Errorf("%q: %+v, want %+v", start, got, want)
		}
	}
}

// The passphrase is read as Ceph's tools read it: only one newline at its end is not part of it.
func TestThePassphraseIsReadFromItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passphrase")
	b := Backend{Pool: "p", Image: "i", PassphraseFile: file}
	for _, c := range []struct {
		content, want string
		mode          fs.FileMode
		isExposed     bool
		text          string // in the error
		code          status.Code
	}{
		{content: "secret", want: "secret", mode: 0o600},
		{content: "secret\n", want: "secret", mode: 0o640},
		{content: "two\nlines\n\n", want: "two\nlines\n", mode: 0o400},
		{content: "secret \r\n", want: "secret \r", mode: 0o644, isExposed: true},
		{content: "secret", want: "secret", mode: 0o660, isExposed: true},
		{content: strings.Repeat("x", maxPassphrase) + "\n",
			want: strings.Repeat("x", maxPassphrase), mode: 0o600},
		{content: "\n", mode: 0o600, text: "is empty", code: status.BadConfig},
		{content: strings.Repeat("x", maxPassphrase+1), mode: 0o600, text: "longer than 4096 bytes",
			code: status.BadConfig},
		{content: strings.Repeat("x", 2*maxPassphrase), mode: 0o600, text: "larger than",
			code: status.BadConfig},
	} {
		_ = os.Remove(file)
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		got, mode, err := b.readPassphrase()
		if string(got) != c.want || files.IsExposed(mode) != c.isExposed ||
			(err != nil) != (c.text != "") {
			t.Errorf("%.20q: %.20q, mode %v, %v", c.content, got, mode, err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.text) || !errors.Is(err, c.code) ||
			!strings.Contains(err.Error(), "p/i")) {
			t.Errorf("%.20q: %v, want %v and %q", c.content, err, c.code, c.text)
		}
	}
	b.PassphraseFile = file + "-missing"
	if _, _, err := b.readPassphrase(); !errors.Is(err, status.NotFound) ||
		!strings.Contains(err.Error(), "passphrase of rbd encryption format") {
		t.Errorf("no file: %v", err)
	}
	b.PassphraseFile = t.TempDir()
	if _, _, err := b.readPassphrase(); !errors.Is(err, status.BadConfig) ||
		!strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
}

func TestImagesAndPassphrasesThatDoNotMatchAreExplained(t *testing.T) {
	with := Backend{Pool: "p", Image: "i", PassphraseFile: "/secret"}
	without := Backend{Pool: "p", Image: "i"}
	for _, c := range []struct {
		backend Backend
		found   encryption
		want    string // "" for no error
	}{
		{with, encryption{version: 2}, ""},
		{without, encryption{}, ""},
		{without, encryption{version: 1}, ""}, // a client may have made it
		{with, encryption{}, "rbd encryption format p/i luks2 /secret"},
		{without, encryption{version: 2, isClone: true}, "passphrase-file=PATH"},
		{with, encryption{version: 2, isClone: true}, ""},
	} {
		err := c.backend.checkEncryption(c.found)
		if (err == nil) != (c.want == "") || err != nil &&
			(!errors.Is(err, status.BadConfig) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v, %+v: %v, want %q", c.backend, c.found, err, c.want)
		}
	}
}

func TestFailuresToDecryptAreExplained(t *testing.T) {
	b := Backend{Pool: "p", Image: "i", PassphraseFile: "/secret"}
	for _, c := range []struct {
		err  error
		code status.Code
		want string
	}{
		{unix.EPERM, status.NotPermitted, "the passphrase in /secret is wrong"},
		{errTooOld, status.NotSupported, "install librbd1 of Ceph 16 or later"},
		{unix.ENOTSUP, status.NotSupported, "built without libcryptsetup"},
		{unix.EINVAL, status.NotSupported, "rbd encryption format makes one"},
		{unix.ENOMEM, status.NoMemory, "MemoryMax="},
		{unix.EIO, status.Unknown, "input/output error"},
	} {
		err := b.explainDecrypt(2, c.err)
		if c.code != status.Unknown && !errors.Is(err, c.code) ||
			!strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "decrypt image p/i (LUKS2)") {
			t.Errorf("%v: %v, want %v and %q", c.err, err, c.code, c.want)
		}
	}
}
