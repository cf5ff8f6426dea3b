// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
)

func TestAPCIAddressNamesItsRDMADevice(t *testing.T) {
	sysfs := sysfstest.New(t)
	for _, address := range []string{"03:00.0", "0000:03:00.0"} {
		if name, err := deviceOfFunction(sysfs, address); err != nil || name != "mlx5_0" {
			t.Errorf("%s: %q, error %v", address, name, err)
		}
	}
	if _, err := deviceOfFunction(sysfs, "99:00.0"); err == nil ||
		!strings.Contains(err.Error(), `"0000:99:00.0" is not an RDMA device`) {
		t.Errorf("an address without a device: %v", err)
	}
}

func TestADaemonServesWithoutSysfs(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	env := &Environment{Log: zap.New(core)}
	if err := registerDevices(env, t.TempDir()+"/sys"); err != nil {
		t.Errorf("register the metrics of RDMA devices: %v", err)
	}
	if logs.FilterMessageSnippet("no metrics").Len() != 1 {
		t.Errorf("logged %v", logs.All())
	}
}
