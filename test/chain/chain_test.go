// SPDX-License-Identifier: Apache-2.0

// Package chain tests target, relay, and client together, in one process, over the embedded
// providers.
//
// The tests wait for conditions rather than for times. Every timeout of the product is so long that
// even a slow machine stays below it; a test whose subject is a timeout sets its own.
package chain

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	volumeName = chaintest.VolumeName
	volumeSize = chaintest.VolumeSize
	blockSize  = chaintest.BlockSize
)

type options = chaintest.Options
