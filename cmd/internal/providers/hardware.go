//go:build !docaemulation || !cgo

package providers

import "github.com/zc-relay/zc-relay/pkg/doca"

// docaLoader returns what opens libdoca: the libraries of this machine.
func docaLoader(string) (*doca.Loader, error) { return doca.System(), nil }
