// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package doca

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/doca"
)

var errAbsent = fmt.Errorf("DMA provider %s: %w", providerName, doca.ErrAbsent)

type absent struct{}

// New returns a provider whose calls fail with status.NotSupported: this build lacks cgo.
func New(Options) dma.Provider { return absent{} }

func (absent) Name() string { return providerName }

func (absent) Devices() ([]string, error) { return nil, errAbsent }

func (absent) Capabilities(string) (dma.Capabilities, error) {
	return dma.Capabilities{}, errAbsent
}

func (absent) Open(string) (dma.Device, error) { return nil, errAbsent }
