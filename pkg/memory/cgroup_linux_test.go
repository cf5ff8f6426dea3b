package memory

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestALimitOfAnyCgroupIsFound(t *testing.T) {
	const own, slice = "sys/fs/cgroup/a.slice/b.service/", "sys/fs/cgroup/a.slice/"
	for name, c := range map[string]struct {
		files map[string]string
		want  string // in the error; "" means none
	}{
		"none":     {map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n"}, ""},
		"no /proc": {nil, ""},
		"unlimited": {map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n",
			own + "memory.max": "max\n", slice + "memory.max": "max\n"}, ""},
		"enough": {map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n",
			own + "memory.max": "1000\n"}, ""},
		"too low": {map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n",
			own + "memory.max": "999\n"}, "cgroup /a.slice/b.service, memory.max = 999"},
		"too low above": {map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n",
			own + "memory.max": "max\n", slice + "memory.max": "12\n"},
			"cgroup /a.slice, memory.max = 12"},
		"root of a namespace": {map[string]string{"proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "12\n"}, "cgroup /, memory.max = 12"},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:cpu:/x\n4:memory:/b\n0::/\nnonsense\n",
			"sys/fs/cgroup/memory/b/memory.limit_in_bytes": "12\n"},
			"cgroup /b, memory.limit_in_bytes = 12"},
	} {
		root := fstest.MapFS{}
		for file, content := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(content)}
		}
		err := checkCgroups(root, 1000)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (!errors.Is(err, status.NoMemory) ||
			!strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
