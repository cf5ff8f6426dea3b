// SPDX-License-Identifier: Apache-2.0

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
		wantRejection(t, name, checkCgroups(root, 1000), c.want)
	}
}

// wantRejection checks that err says want and that there is no memory, or is nil if want is empty.
func wantRejection(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (!errors.Is(err, status.NoMemory) || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: error %v, want %q", name, err, want)
	}
}

func TestMemoryThatNoneCouldFreeIsRejected(t *testing.T) {
	const content = "MemTotal: 8 kB\nMemAvailable: 1 kB\nSwapTotal: 2 kB\nSwapFree: 0 kB\n"
	root := fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte(content)}}
	wantRejection(t, "all", checkTotal(root, 10<<10), "")
	wantRejection(t, "too much", checkTotal(root, 11<<10),
		"11KiB is more than the 10.0 KiB of memory and swap that this machine has")
	wantRejection(t, "unknown", checkTotal(fstest.MapFS{}, 1<<60), "")
	if err := CheckTotal(1 << 60); !errors.Is(err, status.NoMemory) {
		t.Errorf("an exbibyte: %v", err)
	}
}

func TestMemoryThatTheMachineDoesNotHaveIsRejected(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		length  uint64
		want    string // in the error; "" means none
	}{
		"enough": {"MemTotal: 9 kB\nMemAvailable:  8 kB\nSwapFree: 0 kB\n", 8 << 10, ""},
		"swap":   {"MemAvailable: 8 kB\nSwapFree: 2 kB\n", 10 << 10, ""},
		"too much": {"MemAvailable: 8 kB\nSwapFree: 2 kB\n", 10<<10 + 1,
			"10240 bytes that this machine"},
		"unknown": {"MemTotal: 9 kB\nnonsense\n\nMemAvailable: x kB\n", 1 << 40, ""},
	} {
		root := fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte(c.content)}}
		wantRejection(t, name, checkMachine(root, c.length), c.want)
	}
	if err := CheckAvailable(1 << 60); !errors.Is(err, status.NoMemory) {
		t.Errorf("an exbibyte: %v", err)
	}
}
