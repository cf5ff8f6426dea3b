// SPDX-License-Identifier: Apache-2.0

package mutualtls_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func load(t *testing.T, files mutualtls.Files) *mutualtls.Credentials {
	t.Helper()
	c, err := mutualtls.Load(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestARevokedCertificateIsRejectedOnceTheListHasIt(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	target := authority.Write(t.TempDir(), []string{"target.test"})
	relay := authority.Write(t.TempDir(), []string{"relay.test"})
	other := authority.Write(t.TempDir(), []string{"other.test"})
	list := filepath.Join(t.TempDir(), "crl.pem")
	tomorrow := time.Now().Add(24 * time.Hour)
	authority.Revoke(other.Certificate, list, tomorrow)
	server, client := target, relay
	server.Revoked, client.Revoked = list, list
	atTarget, atRelay, atOther := load(t, server), load(t, client), load(t, other)

	if err := handshake(t, atRelay.Client("target.test"), atTarget.Server(nil)); err != nil {
		t.Errorf("a certificate that is not on the list: %v", err)
	}
	err := handshake(t, atOther.Client("target.test"), atTarget.Server(nil))
	if !errors.Is(err, status.Authentication) || !strings.Contains(err.Error(), "was revoked at") {
		t.Errorf("a revoked certificate: %v", err)
	}
	authority.Revoke(target.Certificate, list, tomorrow) // the file changes
	if err := handshake(t, atOther.Client("target.test"), atTarget.Server(nil)); err != nil {
		t.Errorf("a certificate that is no longer on the list: %v", err)
	}
	if err := handshake(t, atRelay.Client("target.test"), atTarget.Server(nil)); err == nil {
		t.Error("the relay accepts a target whose certificate was revoked")
	}
}

func TestAListIsOneOfItsAuthority(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	for name, test := range map[string]struct {
		content func(path string)
		want    string
	}{
		"no file": {func(string) {}, "no such file"},
		"no list": {func(path string) {
			if err := os.WriteFile(path, []byte("-----BEGIN X-----\n-----END X-----\n"),
				0o600); err != nil {
				t.Fatal(err)
			}
		}, "holds no list"},
		"garbage": {func(path string) {
			if err := os.WriteFile(path, []byte{0x30, 0x01}, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "TLS revocation file"},
	} {
		t.Run(name, func(t *testing.T) {
			files := authority.Write(t.TempDir(), []string{"target.test"})
			files.Revoked = filepath.Join(t.TempDir(), "crl.pem")
			test.content(files.Revoked)
			_, err := mutualtls.Load(files, nil)
			if !errors.Is(err, status.BadConfig) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
		})
	}
}

// TestAnAuthorityMayHaveTwoKeys is about the time in which certificates of both are in use.
func TestAnAuthorityMayHaveTwoKeys(t *testing.T) {
	former := mutualtlstest.NewAuthority(t)
	next := former.Forge() // with the same name
	files := former.Write(t.TempDir(), []string{"target.test"})
	files.Revoked = filepath.Join(t.TempDir(), "crl.pem")
	var lists, authorities []byte
	for i, authority := range []*mutualtlstest.Authority{former, next} {
		relay := authority.Write(t.TempDir(), []string{"relay.test"})
		list := filepath.Join(t.TempDir(), "list")
		authority.Revoke(relay.Certificate, list, time.Now().Add(time.Hour))
		lists = append(lists, read(t, list)...)
		authorities = append(authorities, read(t, relay.CA)...)
		write(t, files.CA, authorities)
		write(t, files.Revoked, lists)
		server := load(t, files).Server(nil)
		client := load(t, relay).Client("target.test")
		client.RootCAs = load(t, files).Client("target.test").RootCAs
		if err := handshake(t, client, server); err == nil {
			t.Errorf("key %d: a revoked certificate is accepted", i)
		}
		good := load(t, authority.Write(t.TempDir(), []string{"good.test"})).Client("target.test")
		good.RootCAs = client.RootCAs
		if err := handshake(t, good, server); err != nil {
			t.Errorf("key %d: %v", i, err)
		}
	}
	write(t, files.Revoked, lists[:len(lists)-20])
	if _, err := mutualtls.Load(files, nil); !errors.Is(err, status.BadConfig) ||
		!strings.Contains(err.Error(), "1 of its 2 PEM blocks are damaged") {
		t.Errorf("a list that was cut: %v", err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAForgedListIsRefused(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	forger := authority.Forge()
	files := authority.Write(t.TempDir(), []string{"target.test"})
	files.Revoked = filepath.Join(t.TempDir(), "crl.pem")
	forger.Revoke(files.Certificate, files.Revoked, time.Now().Add(time.Hour))
	_, err := mutualtls.Load(files, nil)
	if !errors.Is(err, status.BadConfig) || !strings.Contains(err.Error(), "is not signed by") {
		t.Errorf("%v", err)
	}
}

func TestAnOutdatedListStaysInUse(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	revoked := authority.Write(t.TempDir(), []string{"relay.test"})
	files := authority.Write(t.TempDir(), []string{"target.test"})
	files.Revoked = filepath.Join(t.TempDir(), "crl.pem")
	authority.Revoke(revoked.Certificate, files.Revoked, time.Now().Add(-time.Hour))
	core, logs := observer.New(zapcore.WarnLevel)
	server, err := mutualtls.Load(files, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	if logs.FilterMessageSnippet("out of date").Len() != 1 {
		t.Errorf("logged %v", logs.All())
	}
	if err := handshake(t, load(t, revoked).Client("target.test"), server.Server(nil)); err == nil {
		t.Error("a revoked certificate is accepted because the list is old")
	}
}

func TestAKeyThatOthersCanReadCausesAWarning(t *testing.T) {
	for mode, warns := range map[os.FileMode]bool{
		0o600: false, 0o640: false, 0o400: false, 0o644: true, 0o660: true, 0o604: true,
	} {
		files := mutualtlstest.NewAuthority(t).Write(t.TempDir(), []string{"target.test"})
		if err := os.Chmod(files.Key, mode); err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zapcore.WarnLevel)
		if _, err := mutualtls.Load(files, zap.New(core)); err != nil {
			t.Fatal(err)
		}
		if got := logs.FilterMessageSnippet("is not private").Len() == 1; got != warns {
			t.Errorf("mode %v: a warning: %v", mode, got)
		}
	}
}
