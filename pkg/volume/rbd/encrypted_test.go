// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

const passphrase = "open sesame"

// passphraseFile returns the path of a new file.
func passphraseFile(t testing.TB, content string) string {
	path := filepath.Join(t.TempDir(), "passphrase")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newEncryptedImage returns the name of a new image with so many MiB behind its header, and the
// path of its passphrase. A header of LUKS1 takes 4 MiB, one of LUKS2 16 MiB.
func newEncryptedImage(t testing.TB, format string, mib int) (name, file string) {
	t.Helper()
	name, file = newImage(t), passphraseFile(t, passphrase+"\n")
	header := map[string]int{"luks1": 4, "luks2": 16}[format]
	ceph(t, "rbd", "create", "--size", fmt.Sprint(mib+header), pool()+"/"+name)
	ceph(t, "rbd", "encryption", "format", pool()+"/"+name, format, file)
	return name, file
}

// copyImage returns the name of a copy, because deriving the key of a new header takes seconds.
func copyImage(t testing.TB, of string) string {
	name := newImage(t)
	ceph(t, "rbd", "cp", "--no-progress", pool()+"/"+of, pool()+"/"+name)
	return name
}

// readDecrypted returns the start of an image as go-ceph decrypts it.
func readDecrypted(t *testing.T, name string, options librbd.EncryptionOptions, n int) []byte {
	t.Helper()
	c, err := rados.NewConn()
	if err == nil {
		err = errors.Join(c.ReadConfigFile(os.Getenv("CEPH_CONF")), c.Connect())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown()
	ioctx, err := c.OpenIOContext(pool())
	if err != nil {
		t.Fatal(err)
	}
	defer ioctx.Destroy()
	image, err := librbd.OpenImageReadOnly(ioctx, name, librbd.NoSnapshot)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := image.EncryptionLoad(options); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, n)
	if _, err := image.ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t testing.TB, v volume.Volume, content []byte) {
	t.Helper()
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	w := volume.Request{Operation: iomsg.OpWrite, Length: uint64(len(content)), Buffer: content}
	if volumetest.Do(t, queue, &w); w.Err != nil {
		t.Fatal(w.Err)
	}
}

func read(t testing.TB, v volume.Volume, n int) []byte {
	t.Helper()
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	r := volume.Request{Operation: iomsg.OpRead, Length: uint64(n), Buffer: make([]byte, n)}
	if volumetest.Do(t, queue, &r); r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Buffer
}

// zero writes every block: librbd decrypts what was never written, as any dm-crypt does, unless the
// whole object is missing.
func zero(t testing.TB, v volume.Volume) {
	t.Helper()
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	z := volume.Request{Operation: iomsg.OpWriteZeroes, Length: v.Info().Size, Deallocate: true}
	if volumetest.Do(t, queue, &z); z.Err != nil {
		t.Fatal(z.Err)
	}
}

func TestEncryptedVolume(t *testing.T) {
	template, file := newEncryptedImage(t, "luks2", 32)
	volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
		v, err := open(t, backend(copyImage(t, template), ",passphrase-file="+file))
		if err == nil {
			zero(t, v)
		}
		return v, err
	})
}

// What a volume writes is in the cluster in no readable form, and any program with the passphrase
// can read it.
func TestContentIsEncryptedAsRBDDoes(t *testing.T) {
	content := bytes.Repeat([]byte("zc-relay: plain "), 1<<20/16)
	for format, options := range map[string]librbd.EncryptionOptions{
		"luks1": librbd.EncryptionOptionsLUKS1{Passphrase: []byte(passphrase)},
		"luks2": librbd.EncryptionOptionsLUKS2{Passphrase: []byte(passphrase)},
	} {
		name, file := newEncryptedImage(t, format, 8)
		v := mustOpen(t, backend(name, ",passphrase-file="+file))
		if got := v.Info(); got.Size != 8<<20 || got.Capabilities.Has(volume.CanReportExtents) ||
			got.Capabilities.Has(volume.CanTrim) {
			t.Errorf("%s: %+v, want the 8 MiB behind the header, without holes and trim", format, got)
		}
		write(t, v, content)
		volumetest.CloseVolume(t, v)
		raw := filepath.Join(t.TempDir(), "raw")
		ceph(t, "rbd", "export", "--no-progress", pool()+"/"+name, raw)
		bytesInCluster, err := os.ReadFile(raw)
		if err != nil || bytes.Contains(bytesInCluster, content[:16]) {
			t.Errorf("%s: the cluster has the content in plain text, or: %v", format, err)
		}
		if !bytes.Equal(readDecrypted(t, name, options, len(content)), content) {
			t.Errorf("%s: another program reads something else", format)
		}
		v = mustOpen(t, backend(name, ",readonly,passphrase-file="+file))
		if !bytes.Equal(read(t, v, len(content)), content) {
			t.Errorf("%s: the content has changed", format)
		}
		volumetest.CloseVolume(t, v)
	}
}

func TestWrongPassphrasesAreExplained(t *testing.T) {
	encrypted, file := newEncryptedImage(t, "luks1", 8)
	plain := newImage(t)
	ceph(t, "rbd", "create", "--size", "8", pool()+"/"+plain)
	for text, want := range map[string]string{
		backend(encrypted, ",passphrase-file="+passphraseFile(t, "wrong")): "is wrong",
		backend(encrypted, ",passphrase-file="+passphraseFile(t, "")):      "is empty",
		backend(encrypted, ",passphrase-file="+file+"-missing"):            "no such file",
		backend(plain, ",passphrase-file="+file):                           "is not encrypted",
	} {
		for _, readonly := range []string{"", ",readonly"} {
			_, err := open(t, text+readonly)
			if err == nil || !strings.Contains(err.Error(), want) ||
				strings.Contains(err.Error(), passphrase) {
				t.Errorf("%s%s: %v, want %q", text, readonly, err, want)
			}
		}
	}
	// The lock is free again, and a file is read anew each time.
	volumetest.CloseVolume(t, mustOpen(t, backend(encrypted, ",passphrase-file="+file)))
}

// Clients may encrypt a volume themselves, so a LUKS header alone is no reason to refuse it.
// Neither warning has the passphrase.
func TestDoubtfulEncryptionIsLogged(t *testing.T) {
	name, file := newEncryptedImage(t, "luks1", 8)
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	for options, want := range map[string]string{
		"":                         "begins with a LUKS header",
		",passphrase-file=" + file: "is not private",
	} {
		spec, err := volume.ParseSpec(backend(name, options), 4096)
		if err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.DebugLevel)
		spec.Logger = zap.New(core)
		v, err := volume.Open(spec)
		if err != nil {
			t.Fatal(err)
		}
		volumetest.CloseVolume(t, v)
		if logs.FilterLevelExact(zap.WarnLevel).FilterMessageSnippet(want).Len() != 1 {
			t.Errorf("options %q: %+v, want a warning with %q", options, logs.All(), want)
		}
		for _, entry := range logs.All() {
			if strings.Contains(fmt.Sprint(entry), passphrase) {
				t.Errorf("the passphrase is in the log: %+v", entry)
			}
		}
	}
}

// A resize counts the header; the volume does not.
func TestAResizedEncryptedImageChangesTheVolume(t *testing.T) {
	name, file := newEncryptedImage(t, "luks1", 8)
	v := mustOpen(t, backend(name, ",passphrase-file="+file))
	defer volumetest.CloseVolume(t, v)
	for _, mib := range []uint64{12, 4} {
		ceph(t, "rbd", "resize", "--no-progress", "--allow-shrink", "--size", fmt.Sprint(mib+4),
			pool()+"/"+name)
		testkit.Eventually(t, "the volume has the new size", func() bool {
			return v.Info().Size == mib<<20
		})
	}
	write(t, v, bytes.Repeat([]byte{7}, 4<<20))
}

// A stand-by fences nobody unless it can decrypt the image, and reads the passphrase when it takes
// over. The former owner's writes have no effect then.
func TestAnEncryptedImageIsTakenOver(t *testing.T) {
	name, file := newEncryptedImage(t, "luks1", 8)
	owner := startOwner(t, backend(name, ",takeover,passphrase-file="+file))
	heirs := passphraseFile(t, "wrong")
	text := backend(name, ",takeover,group=heir,passphrase-file="+heirs)
	if _, err := contend(t, text); !errors.Is(err, status.InUse) {
		t.Errorf("while the owner lives: %v, want IN_USE", err)
	}
	owner.signal(t, syscall.SIGSTOP)
	if _, err := contend(t, text); !errors.Is(err, status.NotPermitted) {
		t.Errorf("with a wrong passphrase: %v, want NOT_PERMITTED", err)
	}
	if list := ceph(t, "rbd", "lock", "ls", pool()+"/"+name); !strings.Contains(list, "auto") {
		t.Errorf("the owner has lost the lock to a target that cannot use the image: %s", list)
	}
	if err := os.WriteFile(heirs, []byte(passphrase), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := contend(t, text)
	if err != nil {
		t.Fatal(err)
	}
	defer volumetest.CloseVolume(t, v)
	content := bytes.Repeat([]byte{0x5a}, writesInFlight*4096)
	write(t, v, content)
	owner.signal(t, syscall.SIGCONT)
	if line, err := owner.lines.ReadString('\n'); !strings.HasPrefix(line, "failed:") {
		t.Fatalf("the former owner printed %q, %v", line, err)
	}
	if !bytes.Equal(read(t, v, len(content)), content) {
		t.Error("a former owner's write has had an effect")
	}
}
