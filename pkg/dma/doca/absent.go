// Package doca stands in for the DMA provider for BlueField hardware, which is not part of this
// repository. Every call fails with status.NotSupported, so that programs can list the provider and
// say why it cannot be used.
package doca

import (
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ErrAbsent is the error of every call. It matches status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported,
	"DMA provider doca is not part of this build: use the provider software")

type absent struct{}

// New returns the provider.
func New() dma.Provider { return absent{} }

func (absent) Name() string { return "doca" }

func (absent) Devices() ([]string, error) { return nil, ErrAbsent }

func (absent) Capabilities(string) (dma.Capabilities, error) {
	return dma.Capabilities{}, ErrAbsent
}

func (absent) Open(string) (dma.Device, error) { return nil, ErrAbsent }
