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
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/doctor"
	"github.com/zc-relay/zc-relay/cmd/internal/ops"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

// Doctor describes a daemon to its doctor command.
type Doctor struct {
	// Subject names the daemon, or the command that runs it, in a sentence.
	Subject string
	// Unit is its systemd unit, and File the configuration file of that unit. RuntimeDirectory is
	// the directory that the unit makes while it runs, "" for none.
	Unit, File, RuntimeDirectory string
	// AddFlags adds the flags of the daemon.
	AddFlags func(*pflag.FlagSet)
	// Complete reads the configuration that the daemon would use and adds it to the options. It
	// must not fail because flags without a file describe only a part. file is the configuration
	// file, "" for none.
	Complete func(o *doctor.Options, file string) error
}

// doctorOptions holds the flags that only the doctor has.
type doctorOptions struct {
	doctor.Options
	output      report.Output
	workers     int
	daemonFlags []string
}

// NewDoctorCommand returns the command that checks the machine for a daemon.
func NewDoctorCommand(c Doctor) *cobra.Command {
	o := doctorOptions{output: report.Text}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for problems that affect the daemon",
		Long: fmt.Sprintf(`doctor checks what %[1]s would use: limits, cores, memory, providers, devices,
addresses, credentials and timeouts. It suggests a remedy for every problem. It reads
the same file, variables and flags. Without any of these flags it reads
%[2]s, if that exists. The exit code is 1 if a check
fails, and 0 if there are only warnings or none.`, c.Subject, c.File),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, &c) },
	}
	f := cmd.Flags()
	c.AddFlags(f)
	f.VisitAll(func(flag *pflag.Flag) { o.daemonFlags = append(o.daemonFlags, flag.Name) })
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

func (o *doctorOptions) run(cmd *cobra.Command, c *Doctor) error {
	file := o.chooseFile(cmd.Flags(), c.File)
	o.Unit, o.RuntimeDirectory, o.FromFile = c.Unit, c.RuntimeDirectory, file != ""
	if err := c.Complete(&o.Options, file); err != nil {
		return err
	}
	if o.workers > 0 {
		o.Workers = o.workers
	}
	r := doctor.Examine(cmd.Context(), &o.Options)
	var err error
	if o.output == report.JSON {
		err = report.WriteJSON(cmd.OutOrStdout(), r)
	} else {
		err = writeFindings(cmd.OutOrStdout(), r)
	}
	if failed := r.Count(doctor.Fail); failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d checks failed", failed, len(r.Findings)))
	}
	return err
}

// chooseFile returns the configuration file that the daemon would use, "" for none. The unit's file
// stands in for a command line without flags.
func (o *doctorOptions) chooseFile(f *pflag.FlagSet, file string) string {
	if slices.ContainsFunc(o.daemonFlags, f.Changed) {
		file = f.Lookup("config").Value.String()
	} else if config.UnitFile(f, nil, file) == "" {
		o.Configuration, o.IsEmpty = "defaults and variables; there is no "+file, true
		return ""
	}
	o.Configuration = "flags and variables"
	if file != "" {
		o.Configuration = file + ", flags and variables"
	}
	return file
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

// Examined is the part of a configuration that both daemons have, for Describe.
type Examined struct {
	Workers    *config.Workers
	Control    *config.Control
	Operations *config.Operations
	TLS        *config.TLS
	RDMA       *config.RDMA
	// MoreCPUs holds cores of workers besides those in Workers.
	MoreCPUs []int
	// Descriptors returns how many file descriptors the daemon can need with a number of workers.
	Descriptors func(workers int) int
}

// Describe adds to o what a daemon with this configuration would use.
func (c *Examined) Describe(o *doctor.Options) error {
	mode, err := progress.ParseMode(c.Workers.Poll)
	if err != nil {
		return err
	}
	cpus, err := workerCPUs(*c.Workers)
	if err != nil {
		return err
	}
	o.Busy, o.Workers = mode == progress.Busy, len(cpus)
	o.CPUs = slices.Concat(c.Workers.CPUs, c.MoreCPUs)
	o.Descriptors = c.Descriptors(len(cpus))
	o.LimitNOFILE = config.DescriptorLimit(o.Descriptors)
	o.KeepAliveInterval, o.DeadAfter = c.Control.KeepAliveInterval, c.Control.KeepAliveDeadAfter
	for _, address := range []string{c.Operations.Listen, c.Operations.Admin} {
		if address != "" && !strings.HasPrefix(address, "unix:") {
			o.OwnListen = append(o.OwnListen, address)
		}
	}
	if o.Admin = c.Operations.Admin; o.Admin != "" {
		o.CheckAdmin = func() error { return ops.CheckAdmin(o.Admin) }
	}
	log := zap.NewNop()
	o.Verbs, o.DocaRDMA = c.RDMA.Provider == verbs.ProviderName, c.RDMA.Provider == "doca"
	o.OpenRDMA = func() (rdma.Provider, error) { return openRDMA(*c.RDMA, log) }
	if c.TLS.Enabled() {
		o.LoadTLS = func() (time.Time, error) {
			credentials, err := loadTLS(*c.TLS, log)
			if err != nil {
				return time.Time{}, err
			}
			return credentials.NotAfter(), nil
		}
		o.Secure = func(serverName string) (*tls.Config, error) {
			credentials, err := loadTLS(*c.TLS, log)
			if err != nil {
				return nil, err
			}
			return credentials.Client(serverName), nil
		}
	}
	return nil
}
