// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openServer opens a server as the daemon does, under a name that no client knows, and closes it.
// found is what is known about the service so far. A server of the emulation would leave
// directories behind, which belong to this user, so the provider only checks whether it could open
// one.
func (m *machine) openServer(check string, provider comch.Provider, s Server,
	maxName int, found string) Finding {
	if checker, can := provider.(comch.ServerChecker); can {
		err := checker.CheckServer(comch.ServerConfig{Device: s.Device, Representor: s.Representor,
			Name: s.Name, Admission: comch.Admission{AllowAnyUser: s.AdmitsOthers}})
		return m.checkedServer(check, s, found, err)
	}
	if !m.Doca {
		return ok(check, found)
	}
	what := fmt.Sprintf("%s: device %s, representor %s", provider.Name(), s.Device, s.Representor)
	name := "zc-relay-doctor-" + strconv.Itoa(os.Getpid())
	config := comch.ServerConfig{Device: s.Device, Representor: s.Representor,
		Name: name[:min(len(name), maxName)]}
	server, err := devicecall.OpenWithin(context.Background(), func() (comch.Server, error) {
		ctx, cancel := context.WithTimeout(context.Background(), devicecall.Timeout)
		defer cancel()
		return provider.Listen(ctx, config)
	})
	switch {
	case err == nil:
	case isTaken(err) && m.daemonRuns():
		return ok(check, found+"; "+m.Unit+" runs, and the device starts no second server")
	default:
		return fail(check, what+": cannot open a server: "+status.Text(err), m.serverRemedy(s.Channel, err))
	}
	if err := server.Close(); err != nil {
		return warn(check, what+": cannot close a server: "+status.Text(err),
			"report this, with the kernel's log: journalctl --dmesg --grep mlx5")
	}
	return ok(check, found+"; a server was opened there")
}

// checkedServer returns the finding about a server that was checked, but not opened.
func (m *machine) checkedServer(check string, s Server, found string, err error) Finding {
	if err == nil {
		return ok(check, found)
	}
	setting := m.setting("comch.directory", "--emulated-dir")
	isForbidden := errors.Is(err, status.NotPermitted) || errors.Is(err, fs.ErrPermission)
	text := "cannot open a server: " + status.Text(err)
	switch {
	case isForbidden && m.isOtherUser():
		return warn(check, text, m.asService())
	case errors.Is(err, fs.ErrPermission) && m.isRuntime(m.ComchDirectory):
		return warn(check, text, "the unit makes the directory: systemctl start "+m.Unit)
	case isForbidden:
		return fail(check, text, fmt.Sprintf("do what the text says (namei -l %s shows all owners and "+
			"modes), or set %s to a directory of the daemon's user", m.ComchDirectory, setting))
	case errors.Is(err, status.NotFound):
		return fail(check, text, fmt.Sprintf("correct %s, or declare it in the file %s; \"zc-relay "+
			"devices\" shows what is declared%s",
			m.channelSetting(s.Channel, "representor", "--representor"),
			filepath.Join(m.ComchDirectory, "devices"), waits(err)))
	}
	return fail(check, text, "correct "+setting)
}

// isTaken reports whether a server can have failed because of others.
func isTaken(err error) bool {
	return errors.Is(err, status.AlreadyExist) || errors.Is(err, status.InUse) ||
		errors.Is(err, status.Full)
}

// serverRemedy names the command that mends a server that cannot be opened.
func (m *machine) serverRemedy(channel int, err error) string {
	switch status.CodeOf(err) {
	case status.NotFound:
		return fmt.Sprintf("correct %s and %s; \"zc-relay devices --comch-provider doca\" lists what there is%s",
			m.channelSetting(channel, "device", "--device"),
			m.channelSetting(channel, "representor", "--representor"), waits(err))
	case status.NotSupported:
		return "run the relay on the DPU, in DPU mode, on a physical function; \"zc-relay devices --comch-provider doca\" lists what can have servers"
	case status.TimeOut:
		return "the device does not answer: journalctl --dmesg --grep mlx5 has what the kernel knows"
	case status.NoMemory:
		return "raise the limit on locked memory: LimitMEMLOCK=infinity in the unit, ulimit -l unlimited in a shell"
	}
	// DOCA tells little about the cause. What root may and the service's user may not are the files
	// of the device and the features that need a capability.
	return fmt.Sprintf("check that every user may open the device: ls -l %s; if \"zc-relay doctor\" finds no fault as root, give the service the capabilities of DEVX: install -D -m 644 /usr/share/doc/zc-relay/examples/devx.conf /etc/systemd/system/%s.service.d/devx.conf && systemctl daemon-reload",
		filepath.Join(m.Dev, "infiniband"), m.Unit)
}

// waits is added to the remedy for a channel that cannot be opened with err. The relay waits unless
// the configuration or the build is the cause.
func waits(err error) string {
	if relay.IsMisconfigured(err) {
		return ""
	}
	return "; if it is to appear later, nothing: the relay tries again until then"
}

// daemonRuns reports whether a process other than this one runs the daemon's program.
func (m *machine) daemonRuns() bool {
	processes, err := filepath.Glob(filepath.Join(m.Procfs, "[0-9]*"))
	if err != nil {
		return false
	}
	for _, process := range processes {
		pid := filepath.Base(process)
		if pid != strconv.Itoa(os.Getpid()) && m.proc(pid, "comm") == m.Unit {
			return true
		}
	}
	return false
}

// user checks that the findings are those of the service: what a user may depends on the user.
func (m *machine) user() []Finding {
	const check = "user"
	service, err := user.Lookup(m.Unit)
	if err != nil {
		return nil // nobody has installed the service here
	}
	if service.Uid == strconv.Itoa(os.Geteuid()) {
		return []Finding{ok(check, "the user of the service, "+service.Username)}
	}
	return []Finding{warn(check, fmt.Sprintf("user %d: the service runs as %s, who may do less, or more",
		os.Geteuid(), service.Username), m.asService())}
}
