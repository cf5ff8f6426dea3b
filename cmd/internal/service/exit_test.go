// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestOnlyWhatTheOperatorWroteIsAWrongCall(t *testing.T) {
	for code, want := range map[status.Code]int{
		status.InvalidValue: program.ExitUsage,
		// A library, a device, a certificate, or an address may be there at the next start.
		status.NotSupported: program.ExitFailure, status.NotFound: program.ExitFailure,
		status.BadConfig: program.ExitFailure, status.AlreadyExist: program.ExitFailure,
	} {
		if got := program.ExitCode(service.StartFailure(status.Errorf(code, "x"))); got != want {
			t.Errorf("%v ends with %d, want %d", code, got, want)
		}
	}
	if err := service.StartFailure(nil); err != nil {
		t.Errorf("no failure ends with %v", err)
	}
	if err := errors.New("user does not exist"); program.ExitCode(service.StartFailure(err)) !=
		program.ExitFailure {
		t.Errorf("%v is a wrong call", err)
	}
}

// The units restart a daemon unless it ends with 2.
func TestDaemonsTellABadConfigurationFromWhatMayHeal(t *testing.T) {
	const tls = "tls: {certificate: /no/such/file, key: /no/such/file, ca: /no/such/file}\n"
	relay := "channels: [{target: \"127.0.0.1:1\", volume: a, access: {any_user: true}}]\n"
	target := "listen: {address: 127.0.0.1, port: 0}\nvolumes: [{name: a, backend: \"memory:1MiB\"}]\n"
	for name, c := range map[string]struct {
		daemon, file string
		flags        []string
		code         int
		log          string
	}{
		"relay, unknown key":    {"relay", relay + "colour: red\n", nil, 2, "colour"},
		"relay, unknown flag":   {"relay", relay, []string{"--colour"}, 2, "--colour"},
		"relay, no certificate": {"relay", relay + tls, nil, 1, "/no/such/file"},
		"relay, wrong name": {"relay", "channels: [{target: \"10.0.0.300:1\", volume: a}]\n", nil, 2,
			"10.0.0.300"},
		"target, wrong value":    {"target", target + "workers: {poll: never}\n", nil, 2, "never"},
		"target, no certificate": {"target", target + tls, nil, 1, "/no/such/file"},
		"target, no such address": {"target", "listen: {address: 192.0.2.1}\n" +
			"volumes: [{name: a, backend: \"memory:1MiB\"}]\n", nil, 1, "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "daemon.yaml")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			program, arguments := c.daemon, []string{"--config", file}
			if c.daemon == "relay" {
				program, arguments = "zc-relay", append([]string{"run"}, arguments...)
			}
			p := spawn(t, nil, program, append(arguments, c.flags...)...)
			if code := p.Wait(); code != c.code || !p.HasLogged(c.log) {
				t.Errorf("exit code %d, want %d with %q: %s", code, c.code, c.log, p.Stderr.String())
			}
		})
	}
}
