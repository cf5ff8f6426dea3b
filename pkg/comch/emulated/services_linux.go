package emulated

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// maxServices bounds how many services are listed of one device.
const maxServices = 1024

// Services implements comch.ServiceLister: it lists the sockets in the
// provider's directory. One that a killed server has left is among them until
// another server takes its name.
func (p *provider) Services() ([]comch.Service, error) {
	root, err := openRoot(p.directory)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.close()
	representors, err := root.list()
	if err != nil {
		return nil, err
	}
	var services []comch.Service
	var errs []error
	for _, representor := range representors {
		found, err := servicesOf(root, representor)
		services = append(services, found...)
		errs = append(errs, err)
	}
	return services, errors.Join(errs...)
}

// servicesOf lists the services of one representor.
func servicesOf(root *directory, representor string) ([]comch.Service, error) {
	host, err := root.open(representor)
	if err != nil {
		return nil, err
	}
	defer host.close()
	devices, err := host.list()
	if err != nil {
		return nil, err
	}
	var services []comch.Service
	for _, device := range devices {
		names, err := host.sockets(device)
		if err != nil {
			return services, err
		}
		for _, name := range names {
			services = append(services, comch.Service{Device: device, Representor: representor, Name: name})
		}
	}
	return services, nil
}

// sockets names the sockets in a directory inside d.
func (d *directory) sockets(name string) ([]string, error) {
	inner, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer inner.close()
	twin, err := duplicate(inner.descriptor)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(twin), inner.path)
	defer func() { _ = file.Close() }()
	entries, err := file.ReadDir(maxServices)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list directory %s: %w", filepath.Join(d.path, name), err)
	}
	var names []string
	for _, entry := range entries {
		if entry.Type() == os.ModeSocket && !strings.HasSuffix(entry.Name(), ".lock") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}
