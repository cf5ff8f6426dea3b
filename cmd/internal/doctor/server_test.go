// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestDoctorOpensTheServerThatTheDaemonWould(t *testing.T) {
	for name, c := range map[string]struct {
		provider fakeComch
		running  string // the program of another process
		own      bool   // the process is this one
		verdict  Verdict
		text     string
		remedy   string
	}{
		"can be opened": {verdict: OK, text: "a server was opened there"},
		"forbidden": {provider: fakeComch{listenErr: status.NotPermitted}, verdict: Fail,
			text: "cannot open a server", remedy: "install -D -m 644 /usr/share/doc/zc-relay/examples/devx.conf"},
		"fails somehow": {provider: fakeComch{listenErr: status.Driver}, verdict: Fail,
			text: "DRIVER", remedy: "devx.conf"},
		"representor gone": {provider: fakeComch{listenErr: status.NotFound}, verdict: Fail,
			text: "representor b1:00.0", remedy: "zc-relay devices"},
		"hangs": {provider: fakeComch{listenErr: status.TimeOut}, verdict: Fail,
			text: "cannot open", remedy: "journalctl --dmesg"},
		"little memory": {provider: fakeComch{listenErr: status.NoMemory}, verdict: Fail,
			text: "cannot open", remedy: "LimitMEMLOCK=infinity"},
		"taken by the daemon": {provider: fakeComch{listenErr: status.AlreadyExist},
			running: "zc-relay", verdict: OK, text: "zc-relay runs"},
		"taken by another program": {provider: fakeComch{listenErr: status.AlreadyExist},
			running: "doca_server", verdict: Fail, text: "cannot open"},
		"taken while only this doctor runs": {provider: fakeComch{listenErr: status.AlreadyExist},
			running: "zc-relay", own: true, verdict: Fail, text: "cannot open"},
		"stays open": {provider: fakeComch{closeErr: status.Driver}, verdict: Warn,
			text: "cannot close", remedy: "report"},
	} {
		t.Run(name, func(t *testing.T) {
			var listened []comch.ServerConfig
			closed := 0
			m := machineWith(t, nil)
			if c.running != "" {
				process := filepath.Join(m.Procfs, "1")
				if c.own {
					process = filepath.Join(m.Procfs, strconv.Itoa(os.Getpid()))
				}
				sysfstest.Write(t, process, "comm", c.running+"\n")
			}
			m.Doca = true
			m.Servers = []Server{{Service: comch.Service{Device: "03:00.0", Representor: "b1:00.0",
				Name: "storage"}}}
			c.provider.capabilities = comch.Capabilities{Server: true, MaxNameLength: 120}
			c.provider.listened, c.provider.closed = &listened, &closed
			m.OpenComch = func() (comch.Provider, error) { return c.provider, nil }
			findings := m.comch()
			expect(t, findings, c.verdict, c.text)
			if len(findings) != 1 || !strings.Contains(findings[0].Remedy, c.remedy) {
				t.Errorf("the findings are %+v", findings)
			}
			if len(listened) != 1 || listened[0].Device != "03:00.0" ||
				listened[0].Representor != "b1:00.0" || listened[0].Name == "storage" {
				t.Errorf("servers %+v were opened", listened)
			}
			if c.provider.listenErr == nil && closed != 1 {
				t.Errorf("the server was closed %d times", closed)
			}
		})
	}
}

func TestTheEmulatedComchKeepsNoTraceOfTheDoctor(t *testing.T) {
	var listened []comch.ServerConfig
	m := machineWith(t, nil)
	m.Servers = []Server{{Service: comch.Service{Device: "03:00.0", Representor: "b1:00.0"}}}
	m.OpenComch = func() (comch.Provider, error) {
		return fakeComch{capabilities: comch.Capabilities{Server: true, MaxNameLength: 120},
			listened: &listened}, nil
	}
	expect(t, m.comch(), OK, "has representor")
	if len(listened) > 0 {
		t.Errorf("%+v were opened", listened)
	}
}

func TestTheEmulationHasAnyRepresentorUnlessItsDevicesAreDeclared(t *testing.T) {
	m := machineWith(t, nil)
	m.Servers = []Server{{Service: comch.Service{Device: "03:00.0", Representor: "b1:00.1",
		Name: "disk"}}}
	directory := filepath.Join(t.TempDir(), "comch")
	m.OpenComch = func() (comch.Provider, error) {
		return emulated.New(emulated.Options{Directory: directory}), nil
	}
	expect(t, m.comch(), OK, "can serve b1:00.1")
}

func TestFindingsOfAnotherUserAreNotThoseOfTheService(t *testing.T) {
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	m := machineWith(t, nil)
	m.Unit = self.Username
	expect(t, m.user(), OK, self.Username)
	other := "nobody"
	if self.Username == other {
		other = "root"
	}
	m.Unit = other
	expect(t, m.user(), Warn, "the service runs as "+other)
	m.Unit = "no-such-unit"
	if findings := m.user(); len(findings) > 0 {
		t.Errorf("without the service: %+v", findings)
	}
}
