package administer

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

func TestReloadByPIDNeedsNoAdminListener(t *testing.T) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	reload := func(address string, flags ...string) (code int, stderr string) {
		var errs bytes.Buffer
		root := &cobra.Command{Use: "daemon"}
		root.SetErr(&errs)
		root.AddCommand(NewCommands(address)...)
		code = program.Run(t.Context(), root, append([]string{"reload"}, flags...))
		return code, errs.String()
	}
	for _, address := range []string{"", "unix:/no/such/socket"} {
		if code, stderr := reload(address, "--pid", fmt.Sprint(os.Getpid())); code != 0 {
			t.Fatalf("reload exits with %d: %s", code, stderr)
		}
		<-hangups
	}
	for flags, want := range map[string]string{
		"":                         "give --admin or --pid",
		"--pid 0":                  "not the process of a daemon",
		"--pid -1":                 "not the process of a daemon",
		"--pid 1":                  "not the process of a daemon",
		"--pid 7 --admin unix:/no": "--pid",
	} {
		if code, stderr := reload("", strings.Fields(flags)...); code != program.ExitUsage ||
			!strings.Contains(stderr, want) {
			t.Errorf("reload %s: exit code %d: %s", flags, code, stderr)
		}
	}
	const beyond = "99999999" // the largest process is 4194304
	if code, stderr := reload("", "--pid", beyond); code != program.ExitFailure ||
		!strings.Contains(stderr, beyond) {
		t.Errorf("a process that is gone: exit code %d: %s", code, stderr)
	}
}
