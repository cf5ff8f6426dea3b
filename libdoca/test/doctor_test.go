// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
)

// The doctor and the daemon call the same libdoca, here its emulation.
func TestDoctorOpensAServerOfDOCA(t *testing.T) {
	fault := func(function string) string {
		return "faults: [{function: " + function + ", error: NOT_PERMITTED}], "
	}
	for name, c := range map[string]struct {
		faults  string
		runs    bool // a server there
		verdict string
		text    string
	}{
		"alone":              {"", false, "ok", "a server was opened there"},
		"beside the daemon":  {"", true, "ok", "a server was opened there"},
		"forbidden device":   {fault("doca_dev_open"), false, "fail", "not permitted"},
		"forbidden function": {fault("doca_dev_rep_open"), false, "fail", "not permitted"},
		"forbidden server":   {fault("doca_comch_server_create"), false, "fail", "not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			if c.runs {
				serveDoctor(t, directory)
			}
			command := exec.Command(testkit.Emulation.Program(t, "zc-relay"), "doctor",
				"--output", "json", "--comch-provider", "doca", "--device", "03:00.0",
				"--representor", "b1:00.0", "--command-channel-name", "storage")
			command.Env = append(os.Environ(),
				libdoca.EnvironmentConfig+"={"+c.faults+"directory: "+directory+"}")
			output, _ := command.Output() // other checks may fail on this machine
			type finding struct{ Check, Verdict, Detail string }
			var report struct{ Findings []finding }
			if err := json.Unmarshal(output, &report); err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			i := slices.IndexFunc(report.Findings,
				func(f finding) bool { return f.Check == "comch-provider" })
			if i < 0 {
				t.Fatalf("nothing is said about the provider: %s", output)
			}
			if found := report.Findings[i]; found.Verdict != c.verdict ||
				!strings.Contains(found.Detail, c.text) {
				t.Errorf("got %+v, want %s with %q", found, c.verdict, c.text)
			}
		})
	}
}

// serveDoctor has a server where the doctor looks for one.
func serveDoctor(t *testing.T, directory string) {
	t.Helper()
	if err := libdoca.Configure(libdoca.Config{Directory: directory,
		Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) },
	}); err != nil {
		t.Fatal(err)
	}
	server, err := comchdoca.New(comchdoca.Options{Loader: doca.Resolved(libdoca.Lookup)}).Listen(
		t.Context(), comch.ServerConfig{Device: "03:00.0", Representor: "b1:00.0", Name: "storage"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
}
