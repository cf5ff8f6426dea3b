// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

func TestTheReferenceHasTheFlagsOfThisBuild(t *testing.T) {
	page := program.Reference(newCommand())
	// The directory depends on who calls. The page has that of root.
	page = bytes.ReplaceAll(page, []byte(emulated.DefaultDirectory()),
		[]byte(emulated.RootDirectory))
	goldentest.Check(t, "../../../docs/reference/dma-copy.md", page)
}
