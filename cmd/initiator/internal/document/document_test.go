// SPDX-License-Identifier: Apache-2.0

package document

import (
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
)

func TestARangeMustExist(t *testing.T) {
	info := &client.Info{Name: "disk", Size: 1 << 20}
	for _, c := range []struct {
		offset, length uint64
		want           string // "" if the range exists
	}{
		{0, 1 << 20, ""},
		{1 << 20, 0, ""},
		{1<<20 + 512, 0, `offset 1049088 is beyond the end of volume "disk", which has 1MiB`},
		{10 << 30, 4096, `offset 10GiB is beyond the end`},
		{1<<20 - 4096, 8192, `8KiB at offset 1020KiB reach beyond the end`},
		{4096, 1<<64 - 4096, "reach beyond the end"},
	} {
		err := CheckRange(info, c.offset, c.length)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d bytes at offset %d: %v", c.length, c.offset, err)
		}
	}
}
