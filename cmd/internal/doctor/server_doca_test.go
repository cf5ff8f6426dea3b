//go:build cgo

package doctor

import (
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The doctor and the daemon call the same libdoca, here its emulation.
func TestDoctorOpensAServerOfDOCA(t *testing.T) {
	fault := func(function string) []libdoca.Fault {
		return []libdoca.Fault{{Function: function, Error: status.NotPermitted}}
	}
	for name, c := range map[string]struct {
		faults  []libdoca.Fault
		runs    bool // the daemon
		verdict Verdict
		text    string
	}{
		"alone":              {nil, false, OK, "a server was opened there"},
		"beside the daemon":  {nil, true, OK, "a server was opened there"},
		"forbidden device":   {fault("doca_dev_open"), false, Fail, "not permitted"},
		"forbidden function": {fault("doca_dev_rep_open"), false, Fail, "not permitted"},
		"forbidden server":   {fault("doca_comch_server_create"), false, Fail, "not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			config := libdoca.Config{Directory: t.TempDir(), Faults: c.faults,
				Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) }}
			if err := libdoca.Configure(config); err != nil {
				t.Fatal(err)
			}
			provider := comchdoca.New(comchdoca.Options{Loader: doca.Resolved(libdoca.Lookup)})
			service := comch.Service{Device: "03:00.0", Representor: "b1:00.0", Name: "storage"}
			if c.runs {
				server, err := provider.Listen(t.Context(), comch.ServerConfig{
					Device: service.Device, Representor: service.Representor, Name: service.Name})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := server.Close(); err != nil {
						t.Error(err)
					}
				}()
			}
			m := machineWith(t, nil)
			m.Doca, m.Servers = true, []Server{{Service: service}}
			m.OpenComch = func() (comch.Provider, error) { return provider, nil }
			expect(t, m.comch(), c.verdict, c.text)
		})
	}
}
