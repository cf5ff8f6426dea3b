// Package doca stands in for the Comch provider of BlueField hardware, which is not part of this
// build: all calls fail with status.NotSupported. Programs can thus list the provider and say why
// it cannot be used.
package doca

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ErrAbsent is the error of all calls. It matches status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported,
	"comch provider doca is not part of this build: use the provider emulated")

type absent struct{}

// New returns a provider that fails all calls with ErrAbsent.
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
