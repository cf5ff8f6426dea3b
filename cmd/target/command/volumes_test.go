// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func newVolumes(t *testing.T) *volumes {
	t.Helper()
	v, err := openVolumes(&config.Target{}, zap.NewNop(),
		func(v volume.Volume) volume.Volume { return v })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// Storage that hangs while a volume is opened keeps nobody waiting for ever, and what is opened too
// late is closed again.
func TestStorageThatHangsDelaysAnOpenForAWhile(t *testing.T) {
	v := newVolumes(t)
	release, late := make(chan struct{}), make(chan volume.Volume, 1)
	defer func(former func(volume.Spec) (volume.Volume, error), timeout time.Duration) {
		openVolume, openTimeout = former, timeout
	}(openVolume, openTimeout)
	openTimeout = time.Millisecond
	openVolume = func(spec volume.Spec) (volume.Volume, error) {
		<-release
		opened, err := volume.Open(spec)
		late <- opened
		return opened, err
	}
	c := config.Volume{Name: "disk", Backend: "memory:1MiB", BlockSize: 4096}
	if _, err := v.newServed(c); !errors.Is(err, status.TimeOut) ||
		!strings.Contains(err.Error(), "has not answered") {
		t.Errorf("the open returned %v", err)
	}
	if len(v.pending) > 0 {
		t.Errorf("the volume is still %+v", v.pending)
	}
	close(release)
	opened := <-late
	for opened.Status().State != volume.Closed {
		time.Sleep(time.Millisecond)
	}
	if err := opened.Close(t.Context()); err != nil { // awaits the end of the other call
		t.Error(err)
	}
}

func TestVolumesThatAreBeingOpenedAreListed(t *testing.T) {
	v := newVolumes(t)
	opening, release := make(chan struct{}), make(chan struct{})
	defer func(former func(volume.Spec) (volume.Volume, error)) { openVolume = former }(openVolume)
	openVolume = func(spec volume.Spec) (volume.Volume, error) {
		close(opening)
		<-release
		return volume.Open(spec)
	}
	ended := make(chan *servedVolume, 1)
	go func() {
		s, err := v.newServed(config.Volume{Name: "disk", Backend: "memory:1MiB", BlockSize: 4096})
		if err != nil {
			t.Error(err)
		}
		ended <- s
	}()
	<-opening
	list := v.list(nil)
	if len(list) != 1 || list[0].State != string(volume.Opening) || list[0].Since.IsZero() ||
		list[0].Kind != "memory" {
		t.Errorf("the list is %+v", list)
	}
	volumes := v.withPending([]target.VolumeStatus{{Name: "other", State: volume.Serving}})
	if len(volumes) != 2 || volumes[1].Name != "disk" || volumes[1].State != volume.Opening {
		t.Errorf("the volumes are %v", volumes)
	}
	if volumes := v.withPending(volumes[1:]); len(volumes) != 1 {
		t.Errorf("the volumes are %v", volumes)
	}
	close(release)
	s := <-ended
	if list := v.list(nil); len(list) > 0 {
		t.Errorf("the list is %+v", list)
	}
	if err := v.closeVolume(s); err != nil {
		t.Error(err)
	}
}

func TestATargetIsReadyIfAVolumeIsOfUse(t *testing.T) {
	for _, c := range []struct {
		states  []volume.State
		ready   bool
		missing string
	}{
		{nil, true, ""}, // volumes may come
		{[]volume.State{volume.Serving}, true, ""},
		{[]volume.State{volume.StandBy}, true, ""},
		{[]volume.State{volume.Failed}, false, ""},
		{[]volume.State{volume.Opening}, false, ""},
		{[]volume.State{volume.Failed, volume.Closed}, false, ""},
		{[]volume.State{volume.Failed, volume.Serving}, true,
			`serving 1 of 2 volumes: volume "a" is failed: no such file`},
	} {
		var volumes []target.VolumeStatus
		for i, s := range c.states {
			now := target.VolumeStatus{Name: string(rune('a' + i)), State: s}
			if s == volume.Failed {
				now.Reason = "no such file"
			}
			volumes = append(volumes, now)
		}
		if err, missing := readiness(volumes); (err == nil) != c.ready || missing != c.missing {
			t.Errorf("%v: %v, %q", c.states, err, missing)
		}
	}
}

// Whether it is opened now, later, or for an administrator.
func TestATargetWithTheKeyOfACephClientHidesItsMemory(t *testing.T) {
	defer func(open func(volume.Spec) (volume.Volume, error), hide func() error) {
		openVolume, hideMemory = open, hide
	}(openVolume, hideMemory)
	hidden := 0
	hideMemory = func() error {
		hidden++
		return nil
	}
	openVolume = func(volume.Spec) (volume.Volume, error) {
		return volume.Open(volume.Spec{Name: "v", BlockSize: 4096,
			Backend: volume.MemoryBackend{Size: 4096}})
	}
	v := newVolumes(t)
	for i, c := range []struct {
		backend   string
		coreDumps bool
		want      int
	}{{"memory:1MiB", false, 0}, {"rbd:pool/image", true, 0}, {"rbd:pool/image", false, 2}} {
		v.coreDumps, hidden = c.coreDumps, 0
		for _, open := range []func(config.Volume) (*servedVolume, error){v.newConfigured,
			v.newServed} {
			s, err := open(config.Volume{Name: "v", Backend: c.backend, BlockSize: 4096})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Volume.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if hidden != c.want {
			t.Errorf("case %d: the memory has been hidden %d times, want %d", i, hidden, c.want)
		}
	}
}
