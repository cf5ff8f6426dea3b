// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"testing"
	"unsafe"
)

// resolverOf resolves the functions of a stub.
func resolverOf(t *testing.T, s stub) func(name string) unsafe.Pointer {
	t.Helper()
	directory := sharedObjects{s.build(t)}
	var parts []object
	for p := range partNames {
		opened, err := directory.open(part(p))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, opened)
	}
	return func(name string) unsafe.Pointer {
		for _, p := range parts {
			if address := p.lookup(name); address != nil {
				return address
			}
		}
		return nil
	}
}

// without hides one function of a resolver.
func without(resolve func(string) unsafe.Pointer, absent string) func(string) unsafe.Pointer {
	return func(name string) unsafe.Pointer {
		if name == absent {
			return nil
		}
		return resolve(name)
	}
}
