// SPDX-License-Identifier: Apache-2.0

package rdma_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// plainDevice creates domains that record what they are for.
type plainDevice struct {
	rdma.Device
	capabilities rdma.Capabilities
}

func (d plainDevice) Capabilities() rdma.Capabilities { return d.capabilities }

func (plainDevice) NewProtectionDomain() (rdma.ProtectionDomain, error) { return domain{}, nil }

// foreignDevice can use domains of other libraries, too.
type foreignDevice struct{ plainDevice }

func (foreignDevice) NewForeignDomain(foreign memory.Handle) (rdma.ProtectionDomain, error) {
	return domain{of: foreign.(rdma.ForeignMemory).ProtectionDomain()}, nil
}

type domain struct {
	rdma.ProtectionDomain
	of uintptr // 0 for one of its own
}

// opaque is the handle of memory, and keyed of memory with a key.
type opaque struct{ device memory.Device }

func (o opaque) Device() memory.Device { return o.device }

type keyed struct{ opaque }

func (keyed) ProtectionDomain() uintptr { return 7 }
func (keyed) Key() uint32               { return 42 }

func TestOpaqueMemoryGetsTheDomainThatItBelongsTo(t *testing.T) {
	own, other := memory.Device{PCI: "03:00.0", RDMA: "mlx5_0"}, memory.Device{RDMA: "mlx5_1"}
	device := plainDevice{capabilities: rdma.Capabilities{Transport: "roce", OpaqueMemory: true,
		Device: own}}
	incapable := device
	incapable.capabilities.OpaqueMemory = false
	region := func(handle memory.Handle) *memory.Region {
		return memory.NewOpaque(handle, 1<<40, 4096, nil)
	}
	for name, c := range map[string]struct {
		device rdma.Device
		region *memory.Region
		domain uintptr
		fails  string
	}{
		"memory of the process": {foreignDevice{device}, memory.Wrap(make([]byte, 8)), 0, ""},
		"memory of the process, without opaque memory": {plainDevice{}, memory.Wrap(make([]byte,
			8)), 0, ""},
		"keyed":                {foreignDevice{device}, region(keyed{opaque{own}}), 7, ""},
		"of an unknown device": {foreignDevice{device}, region(keyed{}), 7, ""},
		"of another device": {foreignDevice{device}, region(keyed{opaque{other}}), 0,
			"RDMA device 03:00.0 (mlx5_0) cannot use memory of device mlx5_1"},
		"a device without foreign domains": {device, region(keyed{opaque{own}}), 0,
			"choose an RDMA provider that can"},
		"a device without opaque memory": {foreignDevice{incapable}, region(keyed{opaque{own}}), 0,
			"choose an RDMA provider that can"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := rdma.NewDomainFor(c.device, c.region)
			if c.fails != "" {
				if !errors.Is(err, status.NotSupported) || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if err != nil || got != (domain{of: c.domain}) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
