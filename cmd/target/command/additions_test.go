// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// add opens a volume as an administrator would, and closes it.
func add(t *testing.T, a *additions, configured []config.Volume, backend string) error {
	t.Helper()
	v := newVolumes(t)
	s, err := v.newConfined(config.Volume{Name: "added", Backend: backend, BlockSize: 4096},
		func(spec *volume.Spec) error { return a.confine(spec, configured) })
	if err != nil {
		return err
	}
	return v.closeVolume(s)
}

func TestAdministratorsAddVolumesOnlyWhereTheyMay(t *testing.T) {
	directory := t.TempDir()
	state, data, other := directory+"/state", directory+"/data", directory+"/other"
	for _, d := range []string{state, data + "/below", other} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{data + "/out": other, data + "/up": "..",
		data + "/in": "below", data + "/link.img": "../other/victim",
		data + "/device": "/dev/loop-control", directory + "/way": data} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	victim := filepath.Join(other, "victim")
	if err := os.WriteFile(victim, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	configured := []config.Volume{
		{Name: "disk", Backend: "file:" + data + "/disk.img,size=1MiB", BlockSize: 4096},
		{Name: "device", Backend: "file:/dev/null", BlockSize: 4096},
		{Name: "root", Backend: "file:/disk.img", BlockSize: 4096},
		{Name: "image", Backend: "rbd:pool/image,conf=/etc/ceph/one.conf", BlockSize: 4096},
	}
	byDefault := &additions{state: state}
	listed := &additions{Additions: config.Additions{Directories: []string{other}}}
	for _, c := range []struct {
		a             *additions
		backend, want string // want is "" for success
	}{
		{byDefault, "memory:1MiB", ""},
		{byDefault, "file:" + data + "/new,size=1MiB", ""},
		{byDefault, "file:" + data + "/below/new,size=1MiB", ""},
		{byDefault, "file:" + data + "/in/another,size=1MiB", ""},
		{byDefault, "file:" + state + "/new,size=1MiB", ""},
		{byDefault, "file:" + data + "/../data/third,size=1MiB", ""},
		{byDefault, "file:" + data + "/../other/new,size=1MiB", "administrators may add volumes"},
		{byDefault, "file:" + other + "/new,size=1MiB", "only in " + data + ", " + state},
		{byDefault, "file:" + data + "2,size=1MiB", "administrators may add volumes"},
		{byDefault, "file:/etc/new,size=1MiB", "administrators may add volumes"},
		{byDefault, "file:/dev/loop0", "administrators may add volumes"},
		{byDefault, "file:/new,size=1MiB", "administrators may add volumes"},
		{byDefault, "file:" + directory + "/way/new,size=1MiB", "administrators may add volumes"},
		{byDefault, "file:" + data + "/out/new,size=1MiB", "leads out of"},
		{byDefault, "file:" + data + "/out/victim", "leads out of"},
		{byDefault, "file:" + data + "/link.img", "leads out of"},
		{byDefault, "file:" + data + "/up/other/victim", "leads out of"},
		{byDefault, "file:" + data + "/device", "not a regular file"},
		{byDefault, "rbd:pool/image,conf=/tmp/mine.conf", "conf=/tmp/mine.conf: administrators"},
		{listed, "file:" + other + "/listed,size=1MiB", ""},
		{listed, "file:" + data + "/fourth,size=1MiB", "only in " + other},
		{&additions{}, "file:/x/y,size=1MiB", ""},
	} {
		volumes := configured
		if c.a.state == "" && len(c.a.Directories) == 0 {
			volumes, c.want = nil, "may add no volumes on files"
		}
		err := add(t, c.a, volumes, c.backend)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) ||
			!errors.Is(err, status.NotPermitted)) {
			t.Errorf("%s: %v, want %q", c.backend, err, c.want)
		}
	}
	entries, err := os.ReadDir(other)
	if err != nil || len(entries) != 2 { // victim and listed
		t.Errorf("outside there are %v (%v)", entries, err)
	}
}

func TestADeviceIsAddedIfItIsListed(t *testing.T) {
	a := &additions{Additions: config.Additions{Devices: []string{"/dev/disk/by-id/a"}}}
	configured := []config.Volume{{Name: "b", Backend: "file:/dev/disk/by-id/b", BlockSize: 4096}}
	for path, isAllowed := range map[string]bool{"/dev/disk/by-id/a": true,
		"/dev/disk/by-id/../by-id/a": true, "/dev/disk/by-id/b": true, "/dev/disk/by-id/c": false,
		"/dev/sda": false} {
		spec := volume.Spec{Name: "x", Backend: volume.FileBackend{Path: path}, BlockSize: 4096}
		if err := a.confine(&spec, configured); (err == nil) != isAllowed {
			t.Errorf("%s: %v", path, err)
		}
	}
}
