// Package doca is the place of the Comch provider for BlueField hardware. It
// is absent from this build: every call answers with status.NotSupported, so
// that programs can list the provider and say why it cannot be chosen.
package doca

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ErrAbsent is why the provider cannot be used. It matches
// status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported, "comch provider doca is not part of this build: use the provider emulated")

type absent struct{}

// New returns the provider.
func New() comch.Provider { return absent{} }

func (absent) Name() string { return "doca" }

func (absent) Capabilities(string) (comch.Capabilities, error) {
	return comch.Capabilities{}, ErrAbsent
}

func (absent) Listen(context.Context, comch.ServerConfig) (comch.Server, error) {
	return nil, ErrAbsent
}

func (absent) Connect(context.Context, comch.ClientConfig) (comch.Connection, error) {
	return nil, ErrAbsent
}
