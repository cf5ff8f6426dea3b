//go:build verbs

package verbs_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

// iwarpDevices are those of the devices to test on that speak iWARP.
func iwarpDevices(t *testing.T) map[string]netip.Addr {
	t.Helper()
	devices := testDevices(t)
	for name, address := range devices {
		capabilities, err := open(t, verbs.Options{Device: name}, address)
		must(t, err)
		if capabilities.Transport != "iwarp" {
			delete(devices, name)
		}
	}
	return devices
}

func TestTheEmbeddedEndpointAndADeviceKeepThePromisesTogether(t *testing.T) {
	for name, address := range iwarpDevices(t) {
		device, err := verbs.New(verbs.Options{Device: name})
		must(t, err)
		for _, crc := range []bool{false, true} {
			embedded := iwarp.New(iwarp.Options{CRC: crc})
			for _, direction := range []struct {
				initiator, responder rdma.Provider
				victimChecksReads    bool
			}{
				{embedded, device, false},
				{device, embedded, true},
			} {
				t.Run(fmt.Sprintf("%s/%s connects, CRC %t", name, direction.initiator.Name(), crc), func(t *testing.T) {
					lacks := maps.Clone(missing["iwarp"])
					if direction.victimChecksReads {
						delete(lacks, rdmatest.RemoteReadRight)
					}
					rdmatest.Run(t, rdmatest.Config{
						Provider: direction.initiator, Responder: direction.responder, Address: address, Missing: lacks,
					})
				})
			}
		}
	}
}
