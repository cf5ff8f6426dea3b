// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// protection says what keeps others from reading and changing data: on its way between relay and
// target, in the memory of clients, and on the storage of volumes.
func (m *machine) protection() []Finding {
	control := "control connections are in plain text"
	if m.LoadTLS != nil {
		control = "control connections have TLS with certificates of both sides"
	}
	var data string
	switch m.DataSecurity {
	case controlmsg.DataSecurityRequired:
		data = "data has TLS or stays on this machine (otherwise there is no session)"
	case controlmsg.DataSecurityTLS:
		data = "data has TLS if the peer wants it, too"
	default:
		data = "data is not encrypted"
	}
	if m.Verbs || m.DocaRDMA {
		data = "data is not encrypted: its RDMA provider has no TLS"
	}
	if m.Fabric != "" {
		data += "; the network is declared to be protected: " + m.Fabric
	}
	parts := append([]string{control, data}, m.clientMemory()...)
	return []Finding{ok("protection", strings.Join(append(parts, m.storage()...), "; "))}
}

// clientMemory says who can reach the memory that clients give to a relay.
func (m *machine) clientMemory() (parts []string) {
	type access struct{ isStaged, isHost, admitsAll, admitsOthers bool }
	var different grouped[access]
	for _, s := range m.Servers {
		isStaged := slices.ContainsFunc(m.DMADevices, func(d StagedDevice) bool {
			return d.Channel == s.Channel
		})
		// The provider doca knows no users: whoever may use the function of the host is a client.
		different.add(access{isStaged, m.Doca, s.AdmitsAll && !m.Doca, s.AdmitsOthers && !m.Doca},
			s.Channel)
	}
	for a, channels := range different.all() {
		text := "clients' memory is open to the target for the time of a session (isolation direct)"
		if a.isStaged {
			text = "clients' memory is open only to the relay, which copies the data (isolation staged)"
		}
		switch {
		case a.isHost:
			text += ", and clients are whoever has the host's function"
		case a.admitsAll:
			text += ", and clients are all users"
		case a.admitsOthers:
			text += ", and clients are root, the relay's user, and those of access.users"
		default:
			text += ", and clients are root and the relay's user"
		}
		parts = append(parts, m.inChannels(channels...)+text)
	}
	return parts
}

// storage says which volumes are encrypted where they are stored.
func (m *machine) storage() (parts []string) {
	kinds := []string{"encrypted by RBD (LUKS)", "encrypted by dm-crypt",
		"not encrypted by this target or a dm-crypt under it"}
	volumes := make([][]string, len(kinds))
	for i := range m.Volumes {
		v := &m.Volumes[i]
		kind := len(kinds) - 1
		switch backend := v.Backend.(type) {
		case volume.MemoryBackend, volume.Alias:
			continue // not stored, or listed under its other name
		case volume.FileBackend:
			if m.isOnDMCrypt(backend.Path) {
				kind = 1
			}
		case interface{ IsEncrypted() bool }:
			if backend.IsEncrypted() {
				kind = 0
			}
		}
		volumes[kind] = append(volumes[kind], v.Name)
	}
	for kind, names := range volumes {
		if len(names) > 0 {
			parts = append(parts, "stored data of "+named("volume", names)+": "+kinds[kind])
		}
	}
	return parts
}

// isOnDMCrypt reports whether all that a file or block device stores passes through dm-crypt, as
// far as sysfs shows that.
func (m *machine) isOnDMCrypt(path string) bool {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Stat(filepath.Dir(path)) // it will be created there
	}
	if err != nil {
		return false
	}
	stat := info.Sys().(*syscall.Stat_t)
	device := stat.Dev
	if info.Mode()&fs.ModeDevice != 0 {
		device = stat.Rdev
	}
	return m.isEncrypted(filepath.Join("dev", "block",
		fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device))), 0)
}

// maxStacked bounds how many block devices may be stacked.
const maxStacked = 16

// isEncrypted reports whether a block device, given by its path in sysfs, is a mapping of dm-crypt,
// or consists of such mappings only.
func (m *machine) isEncrypted(device string, depth int) bool {
	uuid := m.sys(device, "dm", "uuid")
	if kind, isCryptsetup := strings.CutPrefix(uuid, "CRYPT-"); isCryptsetup {
		// cryptsetup also makes mappings that only check what they read.
		return !strings.HasPrefix(kind, "VERITY-") && !strings.HasPrefix(kind, "INTEGRITY-")
	}
	below, err := os.ReadDir(filepath.Join(m.Sysfs, device, "slaves"))
	if err != nil || len(below) == 0 || depth == maxStacked {
		return false
	}
	return !slices.ContainsFunc(below, func(e os.DirEntry) bool {
		return !m.isEncrypted(filepath.Join(device, "slaves", e.Name()), depth+1)
	})
}
