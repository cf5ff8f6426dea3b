// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package libdoca_test

import (
	"os"
	"testing"
)

func TestTheLibraryNeedsCgo(t *testing.T) {
	if os.Getenv("CI") != "" {
		t.Error("built without cgo: install gcc")
	}
	t.Skip("built without cgo: the emulation of libdoca is C, so this package is empty")
}
