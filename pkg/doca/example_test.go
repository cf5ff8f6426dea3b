// SPDX-License-Identifier: Apache-2.0

package doca_test

import (
	"github.com/zc-relay/zc-relay/pkg/comch/doca"
	dmadoca "github.com/zc-relay/zc-relay/pkg/dma/doca"
	docalibrary "github.com/zc-relay/zc-relay/pkg/doca"
)

// One library for two providers: a device that both open is opened once.
func Example() {
	library := docalibrary.System()
	_ = doca.New(doca.Options{Loader: library})
	_ = dmadoca.New(dmadoca.Options{Loader: library})
}
