// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package doca

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
)

var errAbsent = fmt.Errorf("comch provider %s: %w", providerName, doca.ErrAbsent)

type absent struct{}

// New returns a provider whose calls fail with status.NotSupported: this build lacks cgo.
func New(Options) comch.Provider { return absent{} }

func (absent) Name() string { return providerName }

func (absent) Capabilities(string) (comch.Capabilities, error) {
	return comch.Capabilities{}, errAbsent
}

func (absent) Listen(context.Context, comch.ServerConfig) (comch.Server, error) {
	return nil, errAbsent
}

func (absent) Connect(context.Context, comch.ClientConfig) (comch.Connection, error) {
	return nil, errAbsent
}

// Devices implements comch.DeviceLister.
func (absent) Devices() ([]comch.Device, error) { return nil, errAbsent }
