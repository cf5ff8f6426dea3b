// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package emulation opens the emulation of libdoca for programs that have it inside, to test and
// measure them on machines without a BlueField.
package emulation

import (
	"cmp"
	"os"
	"sync"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/verbsbridge"
	"github.com/zc-relay/zc-relay/pkg/doca"
)

// rdmaDevice is the environment variable that names the RDMA device of the emulated BlueField,
// which becomes that of its first function with RDMA. Memory that DOCA has imported gets its key
// there.
const rdmaDevice = "ZC_DOCA_EMULATION_RDMA"

// opened is the libdoca of this process.
var opened struct {
	configure sync.Once
	err       error
	loader    *doca.Loader
}

// Open opens the emulation in this program, with the configuration of the shared library. Its
// servers and clients meet in a directory, which is that of the first call, or else that of the
// configuration.
func Open(directory string) (*doca.Loader, error) {
	opened.configure.Do(func() {
		opened.loader = doca.Resolved(libdoca.Lookup)
		opened.err = configure(directory)
	})
	return opened.loader, opened.err
}

func configure(directory string) error {
	config, err := libdoca.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	config.Directory = cmp.Or(directory, config.Directory)
	config.IdleSleep = 0 // the program's --poll says what an idle thread does
	if os.Getenv(libdoca.EnvironmentDebug) == "" {
		config.Report = nil // on the standard error: these programs are for tests
	}
	if device := os.Getenv(rdmaDevice); device != "" {
		config.Bridge = &verbsbridge.Bridge{}
		for i := range config.Devices {
			if config.Devices[i].Role == libdoca.DPU && !config.Devices[i].NoRDMA {
				config.Devices[i].IBDevice = device
				break
			}
		}
	}
	return libdoca.Configure(config)
}
