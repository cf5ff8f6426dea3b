// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeVolumes remembers what it is asked for, and fails with err.
type fakeVolumes struct {
	added   admin.NewVolume
	removed string
	holder  string
	resized admin.VolumeSize
	forced  bool
	waited  time.Duration
	err     error
}

func (f *fakeVolumes) AdminVolumes() []admin.Volume {
	return []admin.Volume{{NewVolume: f.added, Kind: "memory"}}
}

func (f *fakeVolumes) AddVolume(_ context.Context, v admin.NewVolume) (admin.Volume, error) {
	f.added = v
	return admin.Volume{NewVolume: v, Size: 7}, f.err
}

func (f *fakeVolumes) RemoveVolume(ctx context.Context, name string, force bool) error {
	deadline, _ := ctx.Deadline()
	f.removed, f.forced, f.waited = name, force, time.Until(deadline)
	return f.err
}

func (f *fakeVolumes) ResizeVolume(_ context.Context, name string,
	to admin.VolumeSize) (admin.Volume, error) {
	f.resized = to
	return admin.Volume{NewVolume: admin.NewVolume{Name: name}, Size: to.Size}, f.err
}

func (f *fakeVolumes) PreemptHolder(ctx context.Context, name, holder string) error {
	deadline, _ := ctx.Deadline()
	f.holder, f.waited = name+" "+holder, time.Until(deadline)
	return f.err
}

func TestVolumesAreChangedByClients(t *testing.T) {
	address := "unix:" + filepath.Join(t.TempDir(), "admin.sock")
	a, raw, _, _ := startAdmin(t, address)
	f := &fakeVolumes{}
	a.HandleVolumes(f)
	client, err := admin.New(address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	want := admin.NewVolume{Name: "ä b?", Backend: "memory:1MiB", BlockSize: 512,
		Readers: []string{"a"}, Owners: []string{"b", "c"}}
	if v, err := client.AddVolume(ctx, want); err != nil || !reflect.DeepEqual(f.added, want) ||
		v.Size != 7 || v.Name != want.Name {
		t.Errorf("added %+v, returned %+v, %v", f.added, v, err)
	}
	if all, err := client.Volumes(ctx); err != nil || len(all) != 1 || all[0].Name != want.Name {
		t.Errorf("list: %+v, %v", all, err)
	}
	size := admin.VolumeSize{Size: 1 << 40, Shrink: true}
	if v, err := client.ResizeVolume(ctx, want.Name, size); err != nil || f.resized != size ||
		v.Size != size.Size || v.Name != want.Name {
		t.Errorf("resized to %+v, returned %+v, %v", f.resized, v, err)
	}
	// The daemon stops waiting before its client does.
	if err := client.RemoveVolume(ctx, want.Name, true); err != nil || f.removed != want.Name ||
		!f.forced || f.waited > 90*time.Second || f.waited < time.Second {
		t.Errorf("removed %q, forced %v, waited %v: %v", f.removed, f.forced, f.waited, err)
	}
	if err := client.PreemptHolder(ctx, want.Name, "a/b"); err != nil ||
		f.holder != want.Name+" a/b" || f.waited > 90*time.Second || f.waited < time.Second {
		t.Errorf("preempted %q, waited %v: %v", f.holder, f.waited, err)
	}
	for _, code := range []status.Code{status.InUse, status.AlreadyExist, status.InProgress,
		status.NotFound, status.InvalidValue, status.IOFailed, status.BadState} {
		f.err = status.Errorf(code, "no")
		if err := client.RemoveVolume(ctx, "x", false); !errors.Is(err, code) {
			t.Errorf("an error with %v arrives as %v", code, err)
		}
	}
	for _, request := range [][2]string{
		{"?wait_ms=forever", "{}"}, {"?wait_ms=99999999999", "{}"}, {"?wait_ms=-1", "{}"},
		{"", `{"name":"a","size":1}`}, {"", `[]`}, {"", ``},
	} {
		if code, body := do(t, raw, http.MethodPost, "http://localhost/volumes"+request[0],
			request[1]); code != http.StatusBadRequest {
			t.Errorf("%q is answered with %d %s", request, code, body)
		}
	}
	if code, body := do(t, raw, http.MethodDelete, "http://localhost/volumes/a?force=perhaps",
		""); code != http.StatusBadRequest || !strings.Contains(body, "neither true nor false") {
		t.Errorf("a wrong force is answered with %d %s", code, body)
	}
}
