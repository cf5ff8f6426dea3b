// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package verbs

import "github.com/zc-relay/zc-relay/pkg/rdma"

// New validates options and fails with ErrAbsent: this build lacks the provider.
func New(options Options) (rdma.Provider, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return nil, err
	}
	return nil, ErrAbsent
}
