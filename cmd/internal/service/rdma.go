// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openRDMA returns the configured RDMA provider.
func openRDMA(c config.RDMA, log *zap.Logger) (rdma.Provider, error) {
	if c.Provider == verbs.ProviderName && strings.Contains(pci.Full(c.Device), ":") {
		name, err := deviceOfFunction(rdmadevice.SystemRoot, c.Device)
		if err != nil {
			return nil, fmt.Errorf("rdma.device (--rdma-device): %w", err)
		}
		c.Device = name
	}
	options := providers.RDMAOptions{CRC: c.CRC, Device: c.Device, Logger: log,
		Verbs: verbs.Options{
			Device: c.Device, PathMTU: c.PathMTU, TypeOfService: c.TypeOfService,
			RetryCount: c.RetryCount, AckTimeout: c.AckTimeout, RNRRetryCount: c.RNRRetryCount,
		}}
	if c.GIDIndex != config.AutoGID {
		options.Verbs.GIDIndex = &c.GIDIndex
	}
	p, err := providers.RDMA(c.Provider, options)
	if err != nil {
		return nil, fmt.Errorf("rdma.provider (--rdma-provider): %w", err)
	}
	return p, nil
}

// deviceOfFunction returns the name of the RDMA device of a PCI function.
func deviceOfFunction(sysfs, address string) (string, error) {
	tree, err := rdmadevice.Open(sysfs)
	if err != nil {
		return "", err
	}
	devices, err := tree.Devices()
	if err != nil {
		return "", err
	}
	found, err := tree.Select(devices, []string{pci.Full(address)})
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", status.Errorf(status.InvalidValue,
			"PCI function %s has %d RDMA devices: name one of them", address, len(found))
	}
	return found[0].Name, nil
}
