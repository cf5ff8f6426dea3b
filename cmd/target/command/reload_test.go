// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

var errFull = errors.New("the file system is full")

// rigid is a volume that cannot grow.
type rigid struct{ volume.Volume }

func (rigid) Resize(uint64, bool) error { return errFull }

func TestAReloadNamesTheVolumesThatItCouldNotChange(t *testing.T) {
	defer func(former func(volume.Spec) (volume.Volume, error)) { openVolume = former }(openVolume)
	openVolume = func(spec volume.Spec) (volume.Volume, error) {
		opened, err := volume.Open(spec)
		if spec.Name == "rigid" {
			opened = rigid{opened}
		}
		return opened, err
	}
	dir := t.TempDir()
	configure := func(size string) *config.Target {
		c := config.DefaultTarget()
		for _, name := range []string{"rigid", "other"} {
			c.Volumes = append(c.Volumes, config.Volume{Name: name, BlockSize: 4096,
				Backend: "file:" + dir + "/" + name + ",size=" + size})
		}
		return c
	}
	v := newVolumes(t)
	server, err := target.New(t.Context(), target.Config{RDMA: iwarp.New(iwarp.Options{}),
		Listen: loopback, RDMAListen: loopback, CPUs: []int{datapath.NoCPU}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	defer func() {
		end()
		if err := errors.Join(<-ended, server.Close()); err != nil {
			t.Error(err)
		}
	}()
	former := configure("1MiB")
	for _, c := range []struct {
		to     *config.Target
		failed []string
		err    error
	}{{former, nil, nil}, {configure("2MiB"), []string{"rigid"}, errFull}} {
		serve, err := v.prepare(ctx, server, c.to.Volumes, true)
		if err != nil {
			t.Fatal(err)
		}
		failed, err := serve()
		if !slices.Equal(failed, c.failed) || !errors.Is(err, c.err) {
			t.Errorf("the reload has failed for %v: %v", failed, err)
		}
		changes := config.TargetChanges(former, c.to.KeepVolumes(failed, former))
		if len(failed) > 0 && (len(changes) != 1 || changes[0].Key != "volumes[other].backend") {
			t.Errorf("the changes are %v", changes)
		}
	}
}
