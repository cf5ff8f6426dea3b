package doctor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/internal/affinity"
)

// machine is what the checks look at.
type machine struct{ *Options }

// readFile returns the content of a small file, "" if it cannot be read.
func readFile(root string, path ...string) string {
	content, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (m *machine) sys(path ...string) string  { return readFile(m.Sysfs, path...) }
func (m *machine) proc(path ...string) string { return readFile(m.Procfs, path...) }

// field returns the value of a line "KEY: VALUE" of a file in procfs.
func (m *machine) field(path, key string) string {
	for line := range strings.Lines(m.proc(path)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// unlimited is a limit that is none.
const unlimited = ^uint64(0)

// limit returns a soft limit of the process, by its name in
// /proc/self/limits. The columns of that file are wide apart.
func (m *machine) limit(name string) (value uint64, known bool) {
	for line := range strings.Lines(m.proc("self/limits")) {
		rest, found := strings.CutPrefix(line, name)
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, false
		}
		if fields[0] == "unlimited" {
			return unlimited, true
		}
		value, err := strconv.ParseUint(fields[0], 10, 64)
		return value, err == nil
	}
	return 0, false
}

// cpuList reads a list of cores as the kernel writes it; none if it is empty
// or cannot be read.
func (m *machine) cpuList(text string) []int {
	if text == "" {
		return nil
	}
	cpus, err := affinity.ParseList(text)
	if err != nil {
		return nil
	}
	return cpus
}
