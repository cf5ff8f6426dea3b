// SPDX-License-Identifier: Apache-2.0

package providers

import "github.com/zc-relay/zc-relay/pkg/doca"

// Libdoca opens what takes the place of the DOCA libraries of this machine. directory is where a
// Comch provider is told to let programs of this machine meet, "" if it is not.
type Libdoca func(directory string) (*doca.Loader, error)

// libdoca opens the libraries for the providers doca.
var libdoca Libdoca = func(string) (*doca.Loader, error) { return doca.System(), nil }

// Use makes the providers doca use other libraries, unless other is nil. Call it before one of them
// is chosen.
func Use(other Libdoca) {
	if other != nil {
		libdoca = other
	}
}
