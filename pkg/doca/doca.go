// SPDX-License-Identifier: Apache-2.0

// Package doca reaches NVIDIA's libdoca: devices, memory maps, progress engines, and the contexts
// of Comch and DMA. It is below the providers pkg/comch/doca and pkg/dma/doca.
//
// The library is opened at run time, so programs need neither NVIDIA's headers to build nor its
// libraries to start. Each DOCA function is a pointer in a table, which a shared library fills, or
// an emulation of libdoca in the same process. What a release offers is decided by the functions
// that it has, never by its version number. DOCA 2.9 to 3.3 are supported.
//
// Callbacks of libdoca run in C and only write records. Go collects the records of many callbacks
// with one call into C. Objects that work in turns (Control, Consumer, Producer, Copier) belong to
// one thread at a time, as in DOCA; other methods may be called by any goroutine unless they say
// otherwise.
//
// Builds without cgo contain only this documentation and ErrAbsent.
package doca

import "github.com/zc-relay/zc-relay/pkg/status"

// ErrAbsent is the error of everything that needs libdoca in a build without cgo. It matches
// status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported,
	"this program was built without cgo: use one built by make build-hardware, or from the packages")
