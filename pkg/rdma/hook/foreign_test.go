// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// foreignProvider has devices that can use domains of other libraries.
type foreignProvider struct {
	rdma.Provider
	err error // of NewForeignDomain
}

func (p foreignProvider) Open(address netip.Addr) (rdma.Device, error) {
	device, err := p.Provider.Open(address)
	return foreignDevice{device, p.err}, err
}

type foreignDevice struct {
	rdma.Device
	err error
}

func (d foreignDevice) Capabilities() rdma.Capabilities {
	c := d.Device.Capabilities()
	c.OpaqueMemory = true
	return c
}

func (d foreignDevice) NewForeignDomain(memory.Handle) (rdma.ProtectionDomain, error) {
	if d.err != nil {
		return nil, d.err
	}
	return d.NewProtectionDomain()
}

// foreign is memory of another library.
type foreign struct{}

func (foreign) Device() memory.Device     { return memory.Device{} }
func (foreign) ProtectionDomain() uintptr { return 7 }
func (foreign) Key() uint32               { return 42 }

func TestHooksReachForeignDomains(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:register:error=NO_MEMORY")
	region := memory.NewOpaque(foreign{}, 1<<40, 4096, nil)
	for _, failure := range []error{nil, status.NotSupported} {
		provider := hook.Wrap(foreignProvider{iwarp.New(iwarp.Options{}), failure},
			hook.Config{Injector: injector})
		device, err := provider.Open(loopback)
		if err != nil {
			t.Fatal(err)
		}
		domain, err := rdma.NewDomainFor(device, region)
		if !errors.Is(err, failure) {
			t.Errorf("got %v, want %v", err, failure)
		}
		if err == nil {
			if _, err := domain.Register(region, memory.RemoteRead); !errors.Is(err,
				status.NoMemory) {
				t.Errorf("a rule does not reach the domain: %v", err)
			}
			err = domain.Close()
		}
		if err = errors.Join(err, device.Close()); !errors.Is(err, failure) {
			t.Error(err)
		}
	}
}

// A device that cannot use such domains must not look as if it could.
func TestHooksAddNoForeignDomains(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:any:trace")
	device, err := wrap(injector).Open(loopback)
	if err != nil {
		t.Fatal(err)
	}
	if _, can := device.(rdma.ForeignDevice); can {
		t.Error("a hooked iwarp device claims foreign domains")
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
}
