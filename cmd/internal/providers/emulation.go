//go:build docaemulation && cgo

package providers

import (
	"cmp"
	"os"
	"sync"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/verbsbridge"
	"github.com/zc-relay/zc-relay/pkg/doca"
)

// rdmaDevice is the environment variable that names the RDMA device of the emulated BlueField.
// Memory that DOCA has imported gets its key there.
const rdmaDevice = "ZC_DOCA_EMULATION_RDMA"

// emulation is the libdoca of a build for tests and measurements on machines without a BlueField.
var emulation struct {
	configure sync.Once
	err       error
	loader    *doca.Loader
}

// docaLoader returns what opens libdoca: the emulation in this program. Its servers and clients
// meet in a directory, which is that of the first call.
func docaLoader(directory string) (*doca.Loader, error) {
	emulation.configure.Do(func() {
		emulation.loader = doca.Resolved(libdoca.Lookup)
		config := libdoca.Config{Directory: directory, Devices: []libdoca.Device{
			{PCI: "03:00.0", IBDevice: cmp.Or(os.Getenv(rdmaDevice), "mlx5_0"), Interface: "p0",
				Representors: []libdoca.Representor{{PCI: "b1:00.0"}}},
			{PCI: "b1:00.0", IBDevice: "mlx5_1", Interface: "enp177s0", Role: libdoca.Host},
		}}
		if os.Getenv(rdmaDevice) != "" {
			config.Bridge = &verbsbridge.Bridge{}
		}
		emulation.err = libdoca.Configure(config)
	})
	return emulation.loader, emulation.err
}
