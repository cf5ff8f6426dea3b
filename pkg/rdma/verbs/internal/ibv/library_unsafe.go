// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package ibv

// #cgo LDFLAGS: -ldl
// #include "library.h"
import "C"

import (
	"strings"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Load loads libibverbs and librdmacm, at the first call only. No other function that needs a
// device may be called before it has succeeded. Any goroutine may call it. It fails with
// status.NotSupported, and says which package brings what is missing.
var Load = sync.OnceValue(load)

func load() error {
	var failure C.struct_zc_load_failure
	if C.zc_load(&failure) == 0 {
		return nil
	}
	var reasons, packages []string
	for _, library := range []struct{ reason, name string }{
		{C.GoString(&failure.ibverbs[0]), "libibverbs1"},
		{C.GoString(&failure.rdmacm[0]), "librdmacm1"},
	} {
		if library.reason != "" {
			reasons = append(reasons, library.reason)
			packages = append(packages, library.name)
		}
	}
	return status.Errorf(status.NotSupported, "load the RDMA libraries: %s: install %s, and "+
		"ibverbs-providers for the device's driver (in RPM distributions: libibverbs and librdmacm)",
		strings.Join(reasons, "; "), strings.Join(packages, " and "))
}
