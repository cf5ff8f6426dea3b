// SPDX-License-Identifier: Apache-2.0

package command

import (
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/goldentest"
)

func TestTheReferenceHasTheFlagsOfThisBuild(t *testing.T) {
	goldentest.Check(t, "../../../docs/reference/zc-relay.md", program.Reference(newCommand()))
}
