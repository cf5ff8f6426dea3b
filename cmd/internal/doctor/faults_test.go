// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// TestEachPreparedFaultIsFoundWithACommand prepares one fault at a time in a machine without
// others. What the doctor says of it must name the cause, and the command or the setting that mends
// it. TestATargetIsAskedForTheVolume has a volume of somebody else.
func TestEachPreparedFaultIsFoundWithACommand(t *testing.T) {
	target := netip.MustParseAddrPort("127.0.0.1:1") // nobody listens there
	local := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	dpu := fakeComch{capabilities: comch.Capabilities{Server: true, OpaqueImports: true,
		MaxNameLength: 120}}
	onDPU := func(m *machine, provider fakeComch) {
		m.Doca = true
		m.OpenComch = func() (comch.Provider, error) { return provider, nil }
		m.Servers = []Server{{Service: comch.Service{Device: "03:00.0", Representor: "b1:00.0",
			Name: "disk"}}}
	}
	full := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files   map[string]string
		prepare func(*machine)
		detail  string
		remedy  string
	}{
		"wrong pair of devices": {nil, func(m *machine) {
			onDPU(m, dpu)
			m.OpenRDMA = func() (rdma.Provider, error) {
				return opaqueRDMA{iwarp.New(iwarp.Options{}), memory.Device{RDMA: "mlx5_2"}}, nil
			}
			m.OpenDMA = func() (dma.Provider, error) { return nil, status.NotSupported }
			m.Targets = []Target{{Address: target, ComchDevice: "03:00.0",
				ImportDevice: relay.ImportComch, RDMAAddress: local[0]}}
		}, "cannot reach memory of clients", "--isolation to staged"},
		"one device for both, of two channels": {nil, func(m *machine) {
			onDPU(m, dpu)
			m.FromFile, m.Channels = true, []string{"a", "b"}
			m.OpenRDMA = func() (rdma.Provider, error) {
				return opaqueRDMA{iwarp.New(iwarp.Options{}),
					memory.Device{PCI: "03:00.0", RDMA: "mlx5_2"}}, nil
			}
			m.Targets = []Target{{Channel: 1, Address: target, ComchDevice: "03:00.0",
				ImportDevice: relay.ImportComch, RDMAAddress: local[0]}}
		}, "channel b: RDMA device 03:00.0 (mlx5_2) cannot reach memory of clients",
			"set channels[1].import_device to auto, or channels[1].rdma_address to an address of " +
				"device 03:00.0 (mlx5_0) itself"},
		"no GID": {map[string]string{"sys/rdma": "yes"}, func(m *machine) {
			m.Verbs = true
			if err := os.RemoveAll(filepath.Join(m.Sysfs,
				"class/infiniband/mlx5_0/ports/1/gids")); err != nil {
				t.Fatal(err)
			}
		}, "has no GIDs", "ip address add"},
		"wrong GID index": {nil, func(m *machine) {
			injector, _ := faulttest.New(t, "rdma:post_send:error=TIME_OUT")
			m.OpenRDMA = func() (rdma.Provider, error) {
				return hook.Wrap(iwarp.New(iwarp.Options{}), hook.Config{Injector: injector}), nil
			}
			m.RDMAAddresses = local
		}, "does not reach itself", "--rdma-gid-index"},
		"no permission": {nil, func(m *machine) {
			forbidden := dpu
			forbidden.listenErr = status.Errorf(status.NotPermitted, "not permitted")
			onDPU(m, forbidden)
		}, "cannot open a server", "ls -l"},
		"no huge pages": {map[string]string{
			"proc/meminfo": "HugePages_Total:       0",
			"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"},
			func(*machine) {}, "no huge pages", "echo madvise >"},
		"missing representor": {nil, func(m *machine) {
			onDPU(m, dpu)
			m.Servers[0].Representor = "b1:00.7"
		}, "has no representor b1:00.7", "lspci -D"},
		"missing representor of a file": {nil, func(m *machine) {
			onDPU(m, dpu)
			m.FromFile, m.Channels = true, []string{"a", "b"}
			m.Servers = append(m.Servers, Server{Channel: 1, Service: comch.Service{
				Device: "03:00.0", Representor: "b1:00.1", Name: "disk"}})
		}, "channel b: doca: device 03:00.0 has no representor b1:00.1",
			"channels[1].representor: lspci -D on the host shows the address of the card's function " +
				"there; if it is to appear later, nothing: the relay tries again"},
		"missing device": {nil, func(m *machine) {
			absent := dpu
			absent.err = status.Errorf(status.NotFound, "no device 03:00.0")
			onDPU(m, absent)
		}, "no device 03:00.0", "the relay tries again"},
		"core that is not allowed": {nil, func(m *machine) {
			m.FromFile, m.CPUs = true, []int{4, 9}
		}, "core 9 is not available", "workers.cpus"},
		"two volumes of a target that is down": {nil, func(m *machine) {
			m.FromFile, m.Channels = true, []string{"a", "b"}
			m.Targets = []Target{{Channel: 0, Address: target, Volume: "one"},
				{Channel: 1, Address: target, Volume: "two"}}
		}, "channel b: 127.0.0.1:1 cannot be reached", "systemctl status zc-relay-target"},
		"target that is down": {nil, func(m *machine) {
			m.Targets = []Target{{Address: target, Volume: "disk"}}
		}, "cannot be reached", "systemctl status zc-relay-target"},
		"wrong MTU": {map[string]string{"sys/rdma": "yes"}, func(m *machine) {
			sysfstest.Write(t, m.Sysfs, "class/net/p0/mtu", "1500")
		}, "MTU 1500", "ip link set p0 mtu 9000"},
		"small memlock": {map[string]string{"proc/self/limits": "Limit Soft Hard Units\n" +
			"Max open files            1024                 65536                files     \n" +
			"Max locked memory         65536                65536                bytes     "},
			func(m *machine) { m.Verbs = true }, "RLIMIT_MEMLOCK is 64KiB",
			"LimitMEMLOCK=infinity"},
		"expired certificate": {nil, func(m *machine) {
			m.LoadTLS = func() (time.Time, []string, error) {
				return time.Now().Add(-time.Hour), nil, nil
			}
		}, "expired", "systemctl reload zc-relay"},
		"full disk": {nil, func(m *machine) {
			m.Volumes = []volume.Spec{{Name: "disk", BlockSize: 4096,
				Backend: volume.FileBackend{Path: full, Size: 1 << 60}}}
		}, "its file system has", "df -h"},
		"file that is too small": {nil, func(m *machine) {
			m.Volumes = []volume.Spec{{Name: "disk", BlockSize: 4096,
				Backend: volume.FileBackend{Path: full}}}
		}, "has 0 bytes, less than one block", "stat " + full},
		"forbidden file": {nil, func(m *machine) {
			m.Volumes = []volume.Spec{{Name: "disk", BlockSize: 4096, Backend: forbidden{}}}
		}, "permission denied", "do what the text says"},
		"nothing configured": {nil, func(m *machine) {
			m.Incomplete, m.IsEmpty = errors.New("channels: is empty"), true
		}, "channels: is empty", "write the file"},
		"unusable channel": {nil, func(m *machine) {
			m.CheckChannels = func() error {
				return status.Errorf(status.InvalidValue, "no such way")
			}
		}, "no such way", "correct the channel"},
		"no directory for administrators": {nil, func(m *machine) {
			m.FromFile, m.Admin = true, "unix:/no/such/directory/admin.sock"
			m.CheckAdmin = func() error { return adminserver.CheckAdmin(m.Admin) }
		}, "its directory does not exist", "install -d -o"},
		"web configuration that is wrong": {nil, func(m *machine) {
			m.LoadWeb = func() (time.Time, []string, error) {
				return time.Time{}, nil, errors.New("web.yaml:3: basic_auth_users.a: is no bcrypt hash")
			}
		}, "web.yaml:3: basic_auth_users.a", "--web-config-file"},
		"key of the web configuration that others can read": {nil, func(m *machine) {
			m.LoadWeb = func() (time.Time, []string, error) {
				return time.Now().Add(time.Hour * 9999), []string{"every user can read the key"}, nil
			}
		}, "every user can read", "do what the text says"},
		"certificate of the web configuration that has expired": {nil, func(m *machine) {
			m.LoadWeb = func() (time.Time, []string, error) {
				return time.Now().Add(-time.Hour), nil, nil
			}
		}, "the certificate expired", "renew it"},
		"another file in place of the admin socket": {nil, func(m *machine) {
			m.Admin = "unix:" + full
			m.CheckAdmin = func() error { return adminserver.CheckAdmin(m.Admin) }
		}, "not a socket", "--admin-listen"},
		"runtime directory of a unit that does not run": {nil, func(m *machine) {
			m.RuntimeDirectory, m.Admin = "/no/such", "unix:/no/such/admin.sock"
			m.CheckAdmin = func() error { return adminserver.CheckAdmin(m.Admin) }
		}, "its directory does not exist", "systemctl start zc-relay"},
		"no state directory": {nil, func(m *machine) {
			m.Directories = []Directory{{Path: full + "/state", Flag: "--state-directory",
				Check: files.CheckDirectory}}
		}, "not a directory", "--state-directory"},
		"emulated Comch that others can write to": {nil, func(m *machine) {
			directory := filepath.Join(t.TempDir(), "comch")
			err := errors.Join(os.Mkdir(directory, 0o700), os.Chmod(directory, 0o777))
			if err != nil {
				t.Fatal(err)
			}
			onDPU(m, dpu)
			m.Doca, m.ComchDirectory = false, directory
			m.OpenComch = func() (comch.Provider, error) {
				return emulated.New(emulated.Options{Directory: directory}), nil
			}
		}, "is writable by other users: run chmod go-w", "--emulated-dir"},
		"representor that is not declared": {nil, func(m *machine) {
			directory := t.TempDir()
			if err := os.WriteFile(filepath.Join(directory, "devices"),
				[]byte("dpu 03:00.0 representors=b1:00.1"), 0o600); err != nil {
				t.Fatal(err)
			}
			onDPU(m, dpu)
			m.Doca, m.FromFile, m.ComchDirectory = false, true, directory
			m.OpenComch = func() (comch.Provider, error) {
				return emulated.New(emulated.Options{Directory: directory}), nil
			}
		}, `has no representor "b1:00.0"`, "channels[0].representor"},
		"mistake in the file of emulated devices": {nil, func(m *machine) {
			directory := t.TempDir()
			if err := os.WriteFile(filepath.Join(directory, "devices"), []byte("pigeon"),
				0o600); err != nil {
				t.Fatal(err)
			}
			onDPU(m, dpu)
			m.Doca, m.ComchDirectory = false, directory
			m.OpenComch = func() (comch.Provider, error) {
				return emulated.New(emulated.Options{Directory: directory}), nil
			}
		}, "line 1", "zc-relay devices"},
		"missing key": {nil, func(m *machine) {
			m.LoadTLS = func() (time.Time, []string, error) {
				return time.Time{}, nil, errors.New("no such key")
			}
		}, "no such key", "--tls-key"},
	} {
		t.Run(name, func(t *testing.T) {
			m := machineWith(t, c.files)
			c.prepare(m)
			r := Examine(t.Context(), m.Options)
			for _, f := range r.Findings {
				if f.Verdict != OK && strings.Contains(f.Detail, c.detail) {
					if !strings.Contains(f.Remedy, c.remedy) {
						t.Errorf("%q has the remedy %q, which lacks %q", f.Detail, f.Remedy, c.remedy)
					}
					return
				}
			}
			t.Errorf("nothing says %q: %+v", c.detail, r.Findings)
		})
	}
}

// forbidden is a kind of volume whose storage this user may not open.
type forbidden struct{ absentRBD }

func (forbidden) Check(*volume.Spec) error { return fmt.Errorf("open: %w", os.ErrPermission) }

// TestAForbiddenFileNeedsNoSize has no user to try it with: tests may run as root.
func TestAForbiddenFileNeedsNoSize(t *testing.T) {
	remedy := volumeRemedy("/disk", fmt.Errorf("open: %w", os.ErrPermission))
	if !strings.Contains(remedy, "namei -l /disk") || strings.Contains(remedy, "size=") {
		t.Errorf("the remedy is %q", remedy)
	}
}

func TestATargetThatDoesNotAnswerMayBeBehindAFirewall(t *testing.T) {
	target := netip.MustParseAddrPort("192.0.2.1:7470")
	for err, want := range map[error]string{
		context.DeadlineExceeded: "nft list ruleset", os.ErrDeadlineExceeded: "TCP port 7470",
		syscall.ECONNREFUSED: "systemctl status", syscall.ENETUNREACH: "ip route get 192.0.2.1",
	} {
		if remedy := remedyOf(target, fmt.Errorf("dial: %w", err)); !strings.Contains(remedy, want) {
			t.Errorf("%v has the remedy %q", err, remedy)
		}
	}
}
