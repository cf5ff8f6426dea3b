//go:build !cgo

package libdoca_test

import "testing"

func TestTheLibraryNeedsCgo(t *testing.T) {
	t.Skip("built without cgo: the emulation of libdoca is C, so this package is empty")
}
