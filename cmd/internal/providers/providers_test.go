// SPDX-License-Identifier: Apache-2.0

package providers_test

import (
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/providers"
)

func TestAnAbsentProviderTellsWhatIsMissing(t *testing.T) {
	described := 0
	for _, d := range providers.All() {
		if d.Name != "doca" {
			continue
		}
		described++
		if d.State != "absent" {
			t.Logf("%s provider doca is %s: %s", d.Seam, d.State, d.Detail)
			continue
		}
		// Either the package that brings the library, or the build that has the provider.
		if !strings.Contains(d.Detail, "install doca-sdk-") &&
			!strings.Contains(d.Detail, "make build-hardware") &&
			!strings.Contains(d.Detail, "DOCA ≥ 2.9 is needed") {
			t.Errorf("%s provider doca: %s", d.Seam, d.Detail)
		}
	}
	if described != 3 {
		t.Errorf("%d providers have the name doca, want 3", described)
	}
}
