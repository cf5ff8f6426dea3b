// SPDX-License-Identifier: Apache-2.0

//go:build !ceph || !cgo

package rbd

import (
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Open fails with status.NotSupported: this build does not contain librbd.
func (b Backend) Open(spec *volume.Spec) (volume.Volume, error) { return b.Contend(spec, nil) }

// Prepare fails as Open does.
func (b Backend) Prepare() (release func(), err error) {
	_, err = b.Contend(nil, nil)
	return nil, err
}

// Contend fails as Open does.
func (b Backend) Contend(*volume.Spec, *volume.Ownership) (volume.Owned, error) {
	return nil, status.Errorf(status.NotSupported,
		"this program was built without librbd, which rbd:%s needs: install the package "+
			"zc-relay-target-ceph instead of zc-relay-target, or run make build-ceph", b.path())
}

// Check fails as Open does.
func (b Backend) Check(*volume.Spec) error {
	_, err := b.Contend(nil, nil)
	return err
}
