// SPDX-License-Identifier: Apache-2.0

package service

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/doctor"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/tokenfile"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

// Doctor describes a daemon to its doctor command.
type Doctor[C config.Configuration] struct {
	// Subject names the daemon, or the command that runs it, in a sentence.
	Subject string
	// Unit is its systemd unit. RuntimeDirectory is the directory that the unit makes while it
	// runs, "" for none.
	Unit, RuntimeDirectory string
	// From is where the configuration comes from.
	From *config.Source[C]
	// Describe adds to the options what a daemon with this configuration would use, besides what
	// both daemons have.
	Describe func(o *doctor.Options, c C) error
}

// doctorOptions holds the flags that only the doctor has.
type doctorOptions struct {
	doctor.Options
	output  report.Output
	workers int
}

// NewDoctorCommand returns the command that checks the machine for a daemon.
func NewDoctorCommand[C config.Configuration](d Doctor[C]) *cobra.Command {
	o := doctorOptions{output: report.Text}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for problems that affect the daemon",
		Long: fmt.Sprintf(`doctor checks what %[1]s would use: limits, cores, memory, providers, devices,
addresses, credentials and timeouts. It suggests a remedy for every problem. It reads
the same file, variables and flags. Without any of these flags it reads
%[2]s, if that exists. The exit code is 1 if a check
fails, and 0 if there are only warnings or none.`, d.Subject, d.From.UnitFile),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.complete(&o.Options); err != nil {
				return errors.Join(err, o.write(cmd, doctor.Unusable(err, d.remedy(cmd))))
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	d.From.AddFlags(f)
	o.output.AddFlag(f)
	f.IntVar(&o.workers, "workers", 0,
		"number of workers without --cpu (default: that of the configuration)")
	f.StringArrayVar(&o.Listen, "listen", nil,
		"further address that must be free, `HOST:PORT`; repeatable")
	f.StringVar(&o.Sysfs, "path.sysfs", "/sys", "where sysfs is")
	f.StringVar(&o.Procfs, "path.procfs", "/proc", "where procfs is")
	f.StringVar(&o.Dev, "path.dev", "/dev", "where device files are")
	return cmd
}

// complete adds to the options what the daemon would use. Without flags, the unit's file stands in
// for the command line.
func (d *Doctor[C]) complete(o *doctor.Options) error {
	o.Unit, o.RuntimeDirectory = d.Unit, d.RuntimeDirectory
	file := d.From.File
	if !d.From.HasFlags() {
		file = d.From.FindUnitFile()
	}
	switch {
	case file != "":
		o.Configuration, o.FromFile = file+", flags and variables", true
	case d.From.HasFlags():
		o.Configuration = "flags and variables"
	default:
		o.Configuration = "defaults and variables; there is no " + d.From.UnitFile
		o.IsEmpty = true
	}
	c, incomplete, err := d.From.LoadPart(file)
	if err != nil {
		return err
	}
	o.Incomplete = incomplete
	if err = describe(o, c.Common()); err == nil {
		err = d.Describe(o, c)
	}
	if err == nil {
		o.Descriptors = c.Descriptors(o.Workers)
		o.LimitNOFILE = config.DescriptorLimit(o.Descriptors)
	}
	return program.Usage(err)
}

func (o *doctorOptions) run(cmd *cobra.Command) error {
	if o.workers > 0 {
		o.Workers = o.workers
	}
	r := doctor.Examine(cmd.Context(), &o.Options)
	err := o.write(cmd, r)
	if failed := r.Count(doctor.Fail); failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d checks failed", failed, len(r.Findings)))
	}
	return err
}

// remedy says how to mend a configuration that cannot be used.
func (d *Doctor[C]) remedy(cmd *cobra.Command) string {
	file := d.From.File
	if file == "" && !d.From.HasFlags() {
		file = d.From.FindUnitFile()
	}
	if file == "" {
		return "correct the flags and variables"
	}
	return fmt.Sprintf("give the file that the daemon reads by --config FILE, and correct it: "+
		"\"%s config check %s\" lists its problems", cmd.Root().Name(), file)
}

func (o *doctorOptions) write(cmd *cobra.Command, r *doctor.Report) error {
	if o.output == report.JSON {
		return report.WriteJSON(cmd.OutOrStdout(), r)
	}
	return writeFindings(cmd.OutOrStdout(), r)
}

func writeFindings(w io.Writer, r *doctor.Report) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Verdict, f.Check, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(table, "\t\t→ %s\n", f.Remedy)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print findings: %w", err)
	}
	_, err := fmt.Fprintf(w, "\n%d ok, %s, %s\n", r.Count(doctor.OK),
		counted(r.Count(doctor.Warn), "warning"), counted(r.Count(doctor.Fail), "failure"))
	return err
}

// counted returns a number of things, such as "1 failure" or "2 failures".
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// describe adds to o what a daemon with this configuration would use.
func describe(o *doctor.Options, c *config.Daemon) error {
	mode, err := progress.ParseMode(c.Workers.Poll)
	if err != nil {
		return err
	}
	cpus, err := workerCPUs(c.Workers)
	if err != nil {
		return err
	}
	o.Busy, o.Workers = mode == progress.Busy, len(cpus)
	o.CPUs = slices.Clone(c.Workers.CPUs)
	o.KeepAliveInterval, o.DeadAfter = c.Control.KeepAliveInterval, c.Control.KeepAliveDeadAfter
	for _, address := range []string{c.Operations.Listen, c.Operations.Admin} {
		if address != "" && !strings.HasPrefix(address, "unix:") {
			o.OwnListen = append(o.OwnListen, address)
		}
	}
	if o.Admin = c.Operations.Admin; o.Admin != "" {
		o.CheckAdmin = func() error { return checkAdmin(c.Operations) }
	}
	if file := c.Operations.WebConfigFile; file != "" {
		o.LoadWeb = func() (time.Time, []string, error) { return loadWeb(file) }
	}
	log := zap.NewNop()
	o.Verbs, o.DocaRDMA = c.RDMA.Provider == verbs.ProviderName, c.RDMA.Provider == "doca"
	o.OpenRDMA = func() (rdma.Provider, error) { return openRDMA(c.RDMA, log) }
	o.DataSecurity, o.Fabric = c.Security.Wanted(), c.Security.DeclaredFabric()
	if c.TLS.Enabled() {
		o.TLSKey = c.TLS.Key
		o.LoadTLS = func() (time.Time, []string, error) {
			credentials, err := LoadTLS(c.TLS, usageOf(o.Unit), log)
			if err != nil {
				return time.Time{}, nil, err
			}
			return credentials.NotAfter(), credentials.Problems(), nil
		}
		o.Secure = func(serverName string) (*tls.Config, error) {
			credentials, err := LoadTLS(c.TLS, usageOf(o.Unit), log)
			if err != nil {
				return nil, err
			}
			return credentials.Client(serverName), nil
		}
	}
	return nil
}

// checkAdmin returns why a daemon could not listen for administrators.
func checkAdmin(c config.Operations) error {
	if err := adminserver.CheckAdmin(c.Admin); err != nil {
		return err
	}
	if strings.HasPrefix(c.Admin, admin.UnixPrefix) {
		return nil
	}
	var errs []error
	if c.AdminTokenFile != "" {
		_, err := tokenfile.Read(c.AdminTokenFile, tokenfile.How)
		errs = append(errs, err)
	}
	if c.AdminWebConfigFile != "" {
		_, err := webconfig.Read(c.AdminWebConfigFile)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// loadWeb reads a web configuration file and returns when its certificate expires.
func loadWeb(file string) (expires time.Time, warnings []string, err error) {
	web, err := webconfig.Read(file)
	if err != nil {
		return time.Time{}, nil, err
	}
	for _, w := range web.Warnings() {
		warnings = append(warnings, w.String())
	}
	return web.NotAfter(), warnings, nil
}
