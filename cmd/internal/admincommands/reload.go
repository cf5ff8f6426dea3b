// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func newReloadCommand(daemon Daemon) *cobra.Command {
	var o options
	var pid int
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a running relay or target read its configuration and certificates again",
		Long: `reload does what SIGHUP does, and reports what the daemon has applied, what waits
for a restart, and what has failed. What cannot be applied changes nothing. It exits with 0 if all
settings of the file are in effect, with 5 if some wait for a restart, and with 1 if something has
failed. A daemon without a configuration file and certificates has nothing to read: exit code 2.

With --pid it serves a unit: settings that wait for a restart are no failure. It needs no admin
listener: unless the process is the packaged daemon, which it asks, it sends SIGHUP, and the log of
the process and "systemctl status" have the outcome.`,
		Args: cobra.NoArgs,
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		_ []string) error {
		return o.reload(ctx, cmd, client)
	})
	const pidFlag = "pid"
	cmd.Flags().IntVar(&pid, pidFlag, 0, "the `process` of the daemon, as $MAINPID of its unit")
	cmd.MarkFlagsMutuallyExclusive(adminFlag, pidFlag)
	cmd.MarkFlagsMutuallyExclusive(configFlag, pidFlag)
	ask := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, operands []string) error {
		if !cmd.Flags().Changed(pidFlag) {
			return ask(cmd, operands)
		}
		if o.reaches(cmd.Context(), pid) {
			// A unit that runs on with former settings has not failed to reload.
			err := ask(cmd, operands)
			if program.ExitCode(err) == program.ExitRestart {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				err = nil
			}
			return err
		}
		outcome := Outcome{Operation: operationReload}
		return outcome.Print(cmd, o.output, fmt.Sprintf("sent SIGHUP to process %d: its log and "+
			"\"systemctl status\" have the outcome", pid), hangUp(pid))
	}
	return cmd
}

// reload makes a daemon reload, and prints the outcome.
func (o *options) reload(ctx context.Context, cmd *cobra.Command, client *admin.Client) error {
	outcome := Outcome{Operation: operationReload}
	r, err := client.Reload(ctx)
	if err != nil {
		return outcome.Print(cmd, o.output, "", failure(err))
	}
	outcome.Reload = &r
	err = r.Err()
	switch {
	case errors.Is(err, status.NotSupported):
		err = program.Rejected(err)
	case err != nil && r.Ended != nil:
		err = fmt.Errorf("the reload failed: %w", err)
	}
	if o.output == report.Text {
		writeReload(cmd.OutOrStdout(), &r)
	}
	if err = outcome.Print(cmd, o.output, "", err); err == nil && len(r.RestartPending) > 0 {
		err = program.WithExitCode(program.ExitRestart, fmt.Errorf(
			"restart pending: %s: restart the daemon to apply the configuration file",
			firstOf(r.RestartPending)))
	}
	return err
}

// writeReload writes what a reload has done, for people. The error of the command says the rest.
func writeReload(w io.Writer, r *admin.Reload) {
	isDone := r.Ended != nil && r.Error == ""
	switch {
	case isDone && r.ConfigFile == "" && r.Certificates:
		fmt.Fprintln(w, "reloaded the certificates; the daemon has no configuration file")
	case isDone && r.ConfigFile != "" && len(r.Applied) == 0 && len(r.RestartPending) > 0:
		fmt.Fprintf(w, "reloaded %s: no change takes effect without a restart\n", r.ConfigFile)
	case isDone && r.ConfigFile != "" && len(r.Applied) == 0:
		fmt.Fprintf(w, "reloaded %s: no setting has changed\n", r.ConfigFile)
	case isDone && r.ConfigFile != "":
		fmt.Fprintf(w, "reloaded %s\n", r.ConfigFile)
	case isDone: // by a daemon of a former release
		fmt.Fprintln(w, "reloaded")
	}
	writeChanges(w, r.Applied, func(c *admin.Change) string {
		return fmt.Sprintf("applied (%s)", c.Effect)
	})
	writeChanges(w, r.Failed, func(*admin.Change) string { return "not applied" })
	if len(r.RestartPending) > 0 && r.Err() != nil {
		fmt.Fprintf(w, "restart pending: %s\n", firstOf(r.RestartPending))
	}
}

// maxShownChanges bounds the changes to one setting that are shown. A script that generates
// channels changes hundreds of them alike.
const maxShownChanges = 5

// writeChanges writes changes, each behind a label. Of the same change of many list elements, it
// writes the first ones and the number of the others.
func writeChanges(w io.Writer, changes []admin.Change, label func(*admin.Change) string) {
	kind := func(c *admin.Change) admin.Change {
		k := *c
		k.Key = elementIdentity.ReplaceAllString(c.Key, "[…]")
		return k
	}
	counts, written := make(map[admin.Change]int), make(map[admin.Change]int)
	for i := range changes {
		counts[kind(&changes[i])]++
	}
	for i := range changes {
		c := &changes[i]
		k := kind(c)
		n := written[k]
		written[k]++
		switch {
		case n < maxShownChanges || counts[k] == maxShownChanges+1:
			fmt.Fprintf(w, "%s: %v\n", label(c), *c)
		case n == maxShownChanges:
			fmt.Fprintf(w, "%s: and %d more: %v\n", label(c), counts[k]-n, k)
		}
	}
}

// firstOf joins the first of some keys, and says how many more there are.
func firstOf(keys []string) string {
	if rest := len(keys) - 2*maxShownChanges; rest > 1 {
		keys = append(slices.Clone(keys[:2*maxShownChanges]), fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(keys, ", ")
}

// elementIdentity matches what stands for the number of a list element in a key.
var elementIdentity = regexp.MustCompile(`\[[^\]]*\]`)

// reaches reports whether the daemon at the default address is a process.
func (o *options) reaches(ctx context.Context, pid int) bool {
	client, err := o.Client()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	content, err := client.Status(ctx)
	var daemon struct{ PID int }
	return err == nil && json.Unmarshal(content, &daemon) == nil && daemon.PID == pid
}

// daemonPrograms are the names of the programs that reload at SIGHUP.
var daemonPrograms = []string{"zc-relay", "zc-relay-target", "target",
	filepath.Base(os.Args[0])}

// maxCommLength is how much of a program's name the kernel keeps.
const maxCommLength = 15

// runsDaemon reports whether a process runs a program that reloads, as far as that can be known.
func runsDaemon(pid int) (name string, yes bool) {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err == nil {
		name = filepath.Base(strings.TrimSuffix(path, " (deleted)"))
		return name, slices.Contains(daemonPrograms, name)
	}
	// A process that hides its memory shows only the beginning of the name.
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "", true
	}
	name = strings.TrimSuffix(string(comm), "\n")
	return name, isDaemonName(name)
}

// isDaemonName reports whether the kernel may have made this name from that of a daemon's program.
func isDaemonName(name string) bool {
	return slices.ContainsFunc(daemonPrograms, func(daemon string) bool {
		return daemon[:min(len(daemon), maxCommLength)] == name
	})
}

// hangUp sends SIGHUP to a process.
func hangUp(pid int) error {
	if pid < 2 { // a group of processes, all processes, or init
		return program.Usagef("--pid %d is not the process of a daemon", pid)
	}
	if name, yes := runsDaemon(pid); !yes {
		return program.Usagef("--pid %d is the process of %s, which SIGHUP may end: give that of a "+
			"relay or target (systemctl show --property MainPID UNIT)", pid, name)
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Signal(syscall.SIGHUP)
		_ = process.Release()
	}
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("--pid %d: no process has this number: \"systemctl show --property "+
			"MainPID UNIT\" and \"status\" show that of a daemon", pid)
	}
	if err != nil {
		return fmt.Errorf("send SIGHUP to process %d: %w", pid, err)
	}
	return nil
}
