// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// volumes checks the storage and the memory of volumes without opening them: a running target may
// have locked them.
func (m *machine) volumes() []Finding {
	var findings []Finding
	var needed uint64
	for i := range m.Volumes {
		switch backend := m.Volumes[i].Backend.(type) {
		case volume.MemoryBackend:
			if total := m.bytes("MemTotal") + m.bytes("SwapTotal"); backend.Size > total && total > 0 {
				findings = append(findings, fail("volumes", fmt.Sprintf("volume %s: %v is more than "+
					"the %s of memory and swap that this machine has", m.Volumes[i].Name,
					size.Bytes(backend.Size), size.FormatBytes(total)),
					"use a smaller volume, or one in a file"))
				continue
			}
			needed += backend.Size
		case volume.Alias:
		default:
			findings = append(findings, m.volume(&m.Volumes[i]))
		}
	}
	if needed > 0 {
		findings = append(findings, m.volumeMemory(needed))
	}
	return findings
}

// bytes returns a size of /proc/meminfo, 0 if it cannot be read.
func (m *machine) bytes(key string) uint64 {
	n, _ := size.Parse(strings.ReplaceAll(m.field("meminfo", key), " kB", "KiB"))
	return uint64(n)
}

func (m *machine) volumeMemory(needed uint64) Finding {
	const check = "volumes"
	available := m.bytes("MemAvailable")
	switch {
	case available == 0:
		return warn(check, "the available memory cannot be read", "check that /proc is mounted")
	case needed > available:
		return warn(check, fmt.Sprintf("volumes in memory need up to %v, and %s is available",
			size.Bytes(needed), size.FormatBytes(available)), "use smaller volumes, or files")
	}
	return ok(check, fmt.Sprintf("volumes in memory need up to %v, and %s is available",
		size.Bytes(needed), size.FormatBytes(available)))
}

// volume checks the storage of a volume as the target does when it opens it.
func (m *machine) volume(spec *volume.Spec) Finding {
	const check = "volumes"
	what := fmt.Sprintf("volume %s, %v", spec.Name, spec.Backend)
	if _, can := spec.Backend.(volume.Checker); !can {
		return ok(check, what+": only the target's start shows whether it can be opened")
	}
	file, isFile := spec.Backend.(volume.FileBackend)
	switch err := volume.Check(*spec); {
	case errors.Is(err, status.InUse) && m.daemonRuns():
		return ok(check, fmt.Sprintf("%s: in use, and %s runs", what, m.Unit))
	case err != nil:
		return fail(check, status.Text(err), volumeRemedy(file.Path, err))
	case !isFile:
		return ok(check, what+" can be opened")
	}
	about, err := os.Stat(file.Path)
	switch {
	case err != nil:
		return checkSpace(check, what, file.Path, nil, file.Size, what+" will be created")
	case file.ReadOnly:
		return ok(check, what+" can be opened")
	}
	return checkSpace(check, what, file.Path, about, file.Size, what+" can be opened")
}

// volumeRemedy says what to do about a volume that cannot be opened. path is that of its file, ""
// if it has none.
func volumeRemedy(path string, err error) string {
	where := "volumes[].backend (--volume)"
	switch {
	case path == "":
		return "do what the text says, or choose another backend in " + where
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("give the target's user the right to write to it: namei -l %s shows who "+
			"has which, chown zc-relay-target %[1]s; or add readonly in %s, if reading is enough",
			path, where)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("create the directory (mkdir -p %s), or correct the path in %s",
			filepath.Dir(path), where)
	case errors.Is(err, status.NotFound):
		return fmt.Sprintf("correct the path in %s, or add size= there, to create the file", where)
	case errors.Is(err, status.InUse):
		return fmt.Sprintf("end its other use: lsblk %s shows where it is mounted, fuser -v %[1]s who "+
			"has it open", path)
	case errors.Is(err, status.InvalidValue):
		return fmt.Sprintf("compare path, size=, and block size in %s with the file: stat %s", where,
			path)
	}
	return fmt.Sprintf("correct the path in %s: stat %s shows what is there", where, path)
}
