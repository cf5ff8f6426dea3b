// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command initiator is cmd/initiator with the emulation of libdoca inside.
package main

import (
	"github.com/zc-relay/zc-relay/cmd/initiator/command"
	"github.com/zc-relay/zc-relay/libdoca/cmd/internal/emulation"
)

func main() { command.Main(emulation.Open) }
