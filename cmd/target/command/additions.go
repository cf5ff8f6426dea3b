// SPDX-License-Identifier: Apache-2.0

package command

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// additions confines volumes that administrators add. The target often runs as root, and an
// administrator of volumes need not be one of the machine.
type additions struct {
	config.Additions
	state string // directory, "" for none
}

// cephOption begins the option of a volume that names a configuration file of Ceph.
const cephOption = "conf="

// confine returns an error unless administrators may add the volume. It makes the volume's file
// stay in its directory, whatever links are there. configured are the volumes of the configuration.
func (a *additions) confine(spec *volume.Spec, configured []config.Volume) error {
	file, isFile := spec.Backend.(volume.FileBackend)
	if !isFile {
		return checkCephFile(spec, configured)
	}
	path, err := filepath.Abs(file.Path)
	if err != nil {
		return err
	}
	if a.isListed(path, configured) {
		return nil
	}
	allowed := a.directories(configured)
	for _, directory := range allowed {
		// The longest is the last.
		if path != directory && strings.HasPrefix(path, strings.TrimSuffix(directory, "/")+"/") {
			file.Path, file.Beneath = path, directory
		}
	}
	if file.Beneath != "" {
		spec.Backend = file
		return nil
	}
	rule := "administrators may add no volumes on files"
	if len(allowed) > 0 {
		rule = "administrators may add volumes on files only in " + strings.Join(allowed, ", ")
	}
	return status.Errorf(status.NotPermitted, "file %q: %s: give another path, or add its directory "+
		"to operations.volume_directories (--volume-directory), or a block device to "+
		"operations.volume_devices (--volume-device), and restart the target", file.Path, rule)
}

// isListed reports whether a path is that of a listed device, or of a configured volume.
func (a *additions) isListed(path string, configured []config.Volume) bool {
	isPath := func(other string) bool { return filepath.Clean(other) == path }
	return slices.ContainsFunc(a.Devices, isPath) ||
		slices.ContainsFunc(filesOf(configured), isPath)
}

// directories returns where files may be, in order.
func (a *additions) directories(configured []config.Volume) []string {
	var all []string
	for _, directory := range a.Directories {
		all = append(all, filepath.Clean(directory))
	}
	if len(all) == 0 {
		for _, file := range filesOf(configured) {
			all = append(all, filepath.Dir(file))
		}
		// They hold more than volumes.
		all = slices.DeleteFunc(all, func(d string) bool {
			return d == "/" || d == "/dev" || strings.HasPrefix(d, "/dev/")
		})
		if state, err := filepath.Abs(a.state); err == nil && a.state != "" {
			all = append(all, state)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// filesOf returns the files and devices of volumes.
func filesOf(configs []config.Volume) []string {
	var all []string
	for _, c := range configs {
		spec, err := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
		if err != nil {
			continue
		}
		if file, is := spec.Backend.(volume.FileBackend); is {
			if path, err := filepath.Abs(file.Path); err == nil {
				all = append(all, path)
			}
		}
	}
	return all
}

// checkCephFile returns an error if a volume names a configuration file of Ceph that the
// configuration does not: such a file can make the library write to any other.
func checkCephFile(spec *volume.Spec, configured []config.Volume) error {
	optionOf := func(backend string) string {
		_, options := volume.CutOptions(backend)
		for _, option := range options {
			if strings.HasPrefix(option, cephOption) {
				return option
			}
		}
		return ""
	}
	option := optionOf(spec.Backend.String())
	isConfigured := func(c config.Volume) bool { return optionOf(c.Backend) == option }
	if option == "" || slices.ContainsFunc(configured, isConfigured) {
		return nil
	}
	return status.Errorf(status.NotPermitted, "volume %q: %s: administrators may name only files that "+
		"a volume of the configuration names: leave it away, or put the volume into the "+
		"configuration", spec.Name, option)
}

// configured returns the volumes of the configuration, also those that an administrator has
// removed.
func (v *volumes) configured() []config.Volume {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.configs
}

func (v *volumes) setConfigured(configs []config.Volume) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.configs = configs
}
