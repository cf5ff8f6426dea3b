// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const declaredDevices = `# the DPU and its host
dpu 0000:03:00.0 representors=b1:00.0,0000:B1:00.1 rdma=mlx5_0 netdev=p0

sf 03:00.0 rdma=mlx5_4 netdev=enp3s0f0s0
host b1:00.0 rdma=mlx5_2
host b1:00.1   # another function
`

// declare returns a provider whose directory declares devices.
func declare(t *testing.T, text string) comch.Provider {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "comch")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "devices"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return New(Options{Directory: directory})
}

func TestDeclaredDevicesHaveRoles(t *testing.T) {
	p := declare(t, declaredDevices)
	ctx := context.Background()
	for _, c := range []struct {
		device, representor string
		want                error
	}{
		{"03:00.0", "b1:00.0", nil}, {"0000:03:00.0", "0000:b1:00.1", nil},
		{"b1:00.0", "b1:00.0", status.NotSupported}, {"03:00.1", "b1:00.0", status.NotFound},
		{"03:00.0", "b1:00.2", status.NotFound},
		{"mlx5_0", "b1:00.0", nil}, {"p0", "b1:00.1", nil},
		{"mlx5_4", "b1:00.0", status.NotSupported}, {"enp3s0f0s0", "b1:00.0", status.NotSupported},
	} {
		server, err := p.Listen(ctx, comch.ServerConfig{Device: c.device,
			Representor: c.representor, Name: "roles"})
		if !errors.Is(err, c.want) {
			t.Errorf("listen on %s for %s: got %v, want %v", c.device, c.representor, err, c.want)
		}
		if err == nil {
			host := comch.ClientConfig{Device: "0000:" + strings.TrimPrefix(c.representor, "0000:"),
				Name: "roles"}
			client, err := p.Connect(ctx, host)
			if err != nil {
				t.Errorf("connect from %s: %v", host.Device, err)
			} else {
				client.Abort()
			}
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for device, want := range map[string]error{
		"03:00.0": status.NotSupported, "0000:03:00.0": status.NotSupported,
		"b1:00.2": status.NotFound, "b1:00.0": status.NotFound, // no server
		"mlx5_2": status.NotFound, "mlx5_4": status.NotSupported,
	} {
		_, err := p.Connect(ctx, comch.ClientConfig{Device: device, Name: "roles"})
		if !errors.Is(err, want) {
			t.Errorf("connect from %s: got %v, want %v", device, err, want)
		}
	}
	for device, want := range map[string][2]bool{
		"03:00.0": {true, false}, "0000:b1:00.0": {false, true},
	} {
		c, err := p.Capabilities(device)
		if err != nil || c.Server != want[0] || c.Client != want[1] {
			t.Errorf("%s: server %v, client %v, error %v", device, c.Server, c.Client, err)
		}
	}
	if _, err := p.Capabilities("03:00.1"); !errors.Is(err, status.NotFound) {
		t.Errorf("capabilities of a missing device: %v", err)
	}
}

func TestDevicesAreListed(t *testing.T) {
	devices, err := declare(t, declaredDevices).(comch.DeviceLister).Devices()
	if err != nil || len(devices) != 4 {
		t.Fatalf("%d devices, error %v", len(devices), err)
	}
	d := devices[0]
	if d.PCI != "03:00.0" || d.RDMA != "mlx5_0" || d.Net != "p0" || !d.CanServe || d.CanConnect ||
		len(d.Representors) != 2 || d.Representors[1].PCI != "b1:00.1" ||
		d.Representors[0].VUID == d.Representors[1].VUID {
		t.Errorf("the first device is %+v", d)
	}
	if d := devices[1]; d.PCI != "03:00.0" || d.RDMA != "mlx5_4" || d.CanServe || d.CanConnect {
		t.Errorf("the sub-function is %+v", d)
	}
	if d := devices[2]; d.PCI != "b1:00.0" || d.CanServe || !d.CanConnect || d.Representors == nil {
		t.Errorf("the host's device is %+v", d)
	}
	devices, err = New(Options{Directory: t.TempDir() + "/none"}).(comch.DeviceLister).Devices()
	if err != nil || len(devices) != 2 || devices[0].PCI != DefaultDevice ||
		devices[1].PCI != DefaultHostDevice {
		t.Errorf("without declarations the devices are %+v, error %v", devices, err)
	}
}

func TestBadDeclarationsAreReported(t *testing.T) {
	for text, want := range map[string]string{
		"dpu":                                 "line 1",
		"\nswitch 03:00.0":                    "line 2",
		"dpu a/b":                             "slash",
		"dpu 03:00.0 speed=1":                 "speed=1",
		"host b1:00.0 representors=b1:00.0":   "representors",
		"dpu 03:00.0 representors=":           "empty",
		"dpu 03:00.0\nhost 0000:03:00.0":      "twice",
		"sf 03:00.0 representors=b1:00.0":     "representors",
		strings.Repeat("#", maxDevicesFile+1): "exceeds",
	} {
		p := declare(t, text)
		_, err := p.Listen(context.Background(), comch.ServerConfig{Name: "bad"})
		if !errors.Is(err, status.BadConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
		if _, err := p.(comch.DeviceLister).Devices(); !errors.Is(err, status.BadConfig) {
			t.Errorf("%.40q: listing gives %v", text, err)
		}
	}
}

func TestBothNotationsNameOneServer(t *testing.T) {
	p := New(Options{Directory: filepath.Join(t.TempDir(), "comch")})
	ctx := context.Background()
	config := comch.ServerConfig{Device: "0000:03:00.0", Representor: "0000:B1:00.0", Name: "both"}
	server, err := p.Listen(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	config.Device, config.Representor = "03:00.0", "b1:00.0"
	if _, err := p.Listen(ctx, config); !errors.Is(err, status.AlreadyExist) {
		t.Errorf("listen in the other notation: %v", err)
	}
	services, err := p.(comch.ServiceLister).Services()
	if err != nil || len(services) != 1 || services[0].Device != "03:00.0" ||
		services[0].Representor != "b1:00.0" {
		t.Errorf("services are %+v, error %v", services, err)
	}
	for _, device := range []string{"b1:00.0", "0000:b1:00.0"} {
		client, err := p.Connect(ctx, comch.ClientConfig{Device: device, Name: "both"})
		if err != nil {
			t.Errorf("connect from %s: %v", device, err)
			continue
		}
		client.Abort()
	}
}
