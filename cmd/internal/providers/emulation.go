//go:build docaemulation && cgo

package providers

import (
	"sync"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/doca"
)

// emulation is the libdoca of a build for measurements on machines without a BlueField.
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
		emulation.err = libdoca.Configure(libdoca.Config{Directory: directory})
	})
	return emulation.loader, emulation.err
}
