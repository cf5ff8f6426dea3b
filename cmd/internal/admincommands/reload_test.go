// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

func TestReloadByPIDAsksTheProcessIfItIsThePackagedDaemon(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == admin.StatusPath {
			fmt.Fprintf(w, `{"pid":%d}`, os.Getppid())
			return
		}
		fmt.Fprint(w, `{"started_at":"2026-01-02T03:04:05Z","ended_at":"2026-01-02T03:04:06Z",`+
			`"config_file":"/f","restart_pending":["rdma.crc"]}`)
	}))
	defer server.Close()
	var output, errs bytes.Buffer
	root := &cobra.Command{Use: "daemon"}
	root.SetOut(&output)
	root.SetErr(&errs)
	root.AddCommand(NewCommands(Daemon{Address: strings.TrimPrefix(server.URL, "http://")})...)
	code := program.Run(t.Context(), root, []string{"reload", "--pid", fmt.Sprint(os.Getppid())})
	const want = "reloaded /f: no change takes effect without a restart\n"
	if code != program.ExitOK || output.String() != want ||
		!strings.Contains(errs.String(), "restart pending: rdma.crc") {
		t.Errorf("exit code %d: %q %q", code, output.String(), errs.String())
	}
}

// TestReloadByPIDHurtsNoOtherProgram signals a process number that another program uses by now.
func TestReloadByPIDHurtsNoOtherProgram(t *testing.T) {
	other := exec.Command("sleep", "3600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		if err := other.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("the program has ended with %v", err)
		}
	}()
	testkit.Eventually(t, "the program runs", func() bool {
		name, _ := runsDaemon(other.Process.Pid)
		return name != "" && name != programOfThis(t)
	})
	err := hangUp(other.Process.Pid)
	if err == nil || !strings.Contains(err.Error(), "which SIGHUP may end") {
		t.Error(err)
	}
}

func programOfThis(t *testing.T) string {
	t.Helper()
	name, _ := runsDaemon(os.Getpid())
	if name == "" {
		t.Fatal("/proc is missing")
	}
	return name
}

// Only the name is known of a process that hides its memory, as daemons with keys do.
func TestAHiddenProcessIsKnownByItsName(t *testing.T) {
	for name, want := range map[string]bool{"zc-relay": true, "zc-relay-target": true,
		"target": true, "ssh-agent": false, "relay": false, "": false} {
		if isDaemonName(name) != want {
			t.Errorf("%q is a daemon: %v, want %v", name, !want, want)
		}
	}
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if name := strings.TrimSpace(string(comm)); !isDaemonName(name) {
		t.Errorf("%q, which this test counts as a daemon, is none", name)
	}
}

func TestReloadByPIDNeedsNoAdminListener(t *testing.T) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	reload := func(flags ...string) (code int, stderr string) {
		var errs bytes.Buffer
		root := &cobra.Command{Use: "daemon"}
		root.SetErr(&errs)
		root.AddCommand(NewCommands(Daemon{Address: "unix:/no/such/socket"})...)
		code = program.Run(t.Context(), root, append([]string{"reload"}, flags...))
		return code, errs.String()
	}
	if code, stderr := reload("--pid", fmt.Sprint(os.Getpid())); code != 0 {
		t.Fatalf("reload exits with %d: %s", code, stderr)
	}
	<-hangups
	for flags, want := range map[string]string{
		"--pid 0":                  "not the process of a daemon",
		"--pid -1":                 "must be a whole number",
		"--pid 1":                  "not the process of a daemon",
		"--pid 7 --admin unix:/no": "--pid",
		"--pid 7 --config f":       "--pid",
	} {
		if code, stderr := reload(strings.Fields(flags)...); code != program.ExitUsage ||
			!strings.Contains(stderr, want) {
			t.Errorf("reload %s: exit code %d: %s", flags, code, stderr)
		}
	}
	const beyond = "99999999" // the largest process is 4194304
	if code, stderr := reload("--pid", beyond); code != program.ExitFailure ||
		!strings.Contains(stderr, beyond+": no process has this number: \"systemctl show") {
		t.Errorf("a process that is gone: exit code %d: %s", code, stderr)
	}
}

func TestAReloadOfManyChannelsIsShort(t *testing.T) {
	r := &admin.Reload{ConfigFile: "/f", Ended: new(time.Now()), Applied: []admin.Change{
		{Key: "log.level", Former: "info", Now: "debug", Effect: "at once"}}}
	for i := range 500 {
		key := fmt.Sprintf("channels[ch%d]", i)
		r.Applied = append(r.Applied, admin.Change{Key: key + ".io_timeout", Former: "5s", Now: "6s",
			Effect: "new sessions"})
		r.RestartPending = append(r.RestartPending, key+".cpus")
	}
	for i := range 6 {
		r.Applied = append(r.Applied, admin.Change{Key: fmt.Sprintf("channels[new%d]", i),
			Now: "added", Element: true, Effect: "at once"})
	}
	var text bytes.Buffer
	writeReload(&text, r)
	want := `reloaded /f
applied (at once): log.level: "info" is now "debug"
`
	for i := range 5 {
		want += fmt.Sprintf("applied (new sessions): channels[ch%d].io_timeout: \"5s\" is now \"6s\"\n",
			i)
	}
	want += `applied (new sessions): and 495 more: channels[…].io_timeout: "5s" is now "6s"
`
	for i := range 6 {
		want += fmt.Sprintf("applied (at once): channels[new%d] added\n", i)
	}
	if text.String() != want {
		t.Errorf("%s\nwant\n%s", text.String(), want)
	}
	if keys := firstOf(r.RestartPending); !strings.HasSuffix(keys, "channels[ch9].cpus, and 490 more") {
		t.Error(keys)
	}
}
