// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package doca

import "github.com/zc-relay/zc-relay/pkg/status"

// Loader stands in for the one of builds with cgo.
type Loader struct{}

// System returns a Loader that loads nothing.
func System() *Loader { return &Loader{} }

// LogTo fails with status.NotSupported.
func (*Loader) LogTo(int, uint32) error {
	return status.Errorf(status.NotSupported, "log DOCA messages: this build has no cgo")
}
