// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command target is cmd/target with the emulation of libdoca inside.
package main

import (
	"github.com/zc-relay/zc-relay/cmd/target/command"
	"github.com/zc-relay/zc-relay/libdoca/cmd/internal/emulation"
)

func main() { command.Main(emulation.Open) }
