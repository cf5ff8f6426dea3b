package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/cmd/zc-relay/internal/doctor"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// doctorOptions holds the flags of "zc-relay doctor". Flags that "run" has too mean the same.
type doctorOptions struct {
	doctor.Options
	config string
	output report.Output
	cpus   []string
	poll   string
	rdma   string
	target string
}

// defaultDoctorWorkers is the number of workers of a relay without --cpu.
const defaultDoctorWorkers = 2

func newDoctorCommand() *cobra.Command {
	o := doctorOptions{output: report.Text}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for problems that affect a relay",
		Long: `doctor checks limits, cores, memory, RDMA devices, ports and timeouts, and suggests a
remedy for every problem. It accepts the relevant flags of "run". The exit code is 1
if a check fails, and 0 if there are only warnings or none.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.VarP(&o.output, "output", "o", "output format: text or json")
	f.StringVarP(&o.config, "config", "c", "",
		"YAML file with the configuration whose limits must fit; without it, those of one channel with defaults")
	f.StringArrayVar(&o.cpus, "cpu", nil,
		"core to pin a worker to; repeatable, accepts lists like 0-3")
	f.IntVar(&o.Workers, "workers", defaultDoctorWorkers, "number of workers without --cpu")
	f.StringVar(&o.poll, "poll", progress.Adaptive.String(),
		"what an idle worker does: adaptive, busy or event")
	f.StringVar(&o.rdma, "rdma-provider", providers.DefaultRDMA, "RDMA provider: iwarp or verbs")
	f.StringVar(&o.target, "storage-server", "",
		"control address of the target, IP:PORT, which must be reachable")
	f.StringArrayVar(&o.Listen, "listen", nil,
		"address that must be free, such as the value of --metrics-listen; repeatable")
	keepAlive := controlmsg.DefaultKeepAlive()
	f.DurationVar(&o.KeepAliveInterval, "keep-alive-interval", keepAlive.Interval,
		"interval of keep-alive messages on control connections")
	f.DurationVar(&o.DeadAfter, "keep-alive-dead-after", keepAlive.DeadAfter,
		"time without messages after which the peer of a control connection counts as dead")
	o.IOTimeout = retry.Within(relay.DefaultIOTimeout)
	f.Var(&o.IOTimeout, "io-timeout", "timeout for an IO at the target; infinite sets none")
	f.StringVar(&o.Sysfs, "path.sysfs", "/sys", "where sysfs is")
	f.StringVar(&o.Procfs, "path.procfs", "/proc", "where procfs is")
	f.StringVar(&o.Dev, "path.dev", "/dev", "where device files are")
	return cmd
}

func (o *doctorOptions) run(cmd *cobra.Command) error {
	if err := o.complete(); err != nil {
		return program.Usage(err)
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

func (o *doctorOptions) complete() error {
	for _, list := range o.cpus {
		cpus, err := affinity.ParseList(list)
		if err != nil {
			return fmt.Errorf("--cpu: %w", err)
		}
		o.CPUs = append(o.CPUs, cpus...)
	}
	mode, err := progress.ParseMode(o.poll)
	if err != nil {
		return fmt.Errorf("--poll: %w", err)
	}
	o.Busy = mode == progress.Busy
	if !slices.Contains([]string{"iwarp", "verbs"}, o.rdma) {
		return fmt.Errorf("--rdma-provider %q is neither iwarp nor verbs", o.rdma)
	}
	o.Verbs = o.rdma == "verbs"
	if err := o.countDescriptors(); err != nil {
		return err
	}
	if o.target == "" {
		return nil
	}
	if o.Target, err = netip.ParseAddrPort(o.target); err != nil {
		return fmt.Errorf("--storage-server: %w", err)
	}
	return nil
}

// countDescriptors determines how many file descriptors the configuration can need.
func (o *doctorOptions) countDescriptors() error {
	c := config.DefaultRelay()
	if o.config == "" {
		c.Channels = []config.Channel{config.DefaultChannel()}
	} else {
		var err error
		if c, err = config.LoadRelay(config.Sources{File: o.config,
			Environ: os.Environ()}); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	o.Descriptors = c.Descriptors(max(len(o.CPUs), o.Workers))
	o.LimitNOFILE = config.DescriptorLimit(o.Descriptors)
	return nil
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
	_, err := fmt.Fprintf(w, "\n%d ok, %d warnings, %d failures\n", r.Count(doctor.OK),
		r.Count(doctor.Warn), r.Count(doctor.Fail))
	return err
}
