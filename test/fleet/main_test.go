// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"os"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m).Run()) }
