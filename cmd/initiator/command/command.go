// SPDX-License-Identifier: Apache-2.0

// Package command has the commands of initiator, without what decides where libdoca comes from.
package command

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/verify"
	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/explain"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// Main runs the program. libdoca replaces the DOCA libraries of this machine, unless it is nil.
func Main(libdoca providers.Libdoca) {
	providers.Use(libdoca)
	program.Main(newCommand(openVolume, client.Describe))
}

// opener opens a volume, normally through a relay.
type opener func(ctx context.Context, config client.Config) (volume, error)

// describer describes a volume without opening it.
type describer func(ctx context.Context, config client.Config) (client.Info, error)

// newCommand returns the root command.
func newCommand(open opener, describe describer) *cobra.Command {
	root := &cobra.Command{
		Use:   "initiator",
		Short: "Use a remote volume through zc-relay",
		Long: `initiator opens a volume through a relay and measures it, verifies it, moves files
to and from it, serves it to NBD clients, or makes it a block device. Standard output
carries only the result.

Exit codes: 0 success; 1 an IO failed or data is wrong; 2 wrong usage, or a request
that the volume does not support; 3 no connection; 4 the volume was taken away.`,
		Version: buildinfo.Version(),
	}
	root.SetVersionTemplate(buildinfo.String("initiator") + "\n")
	connection := &connectionFlags{open: open, describe: describe}
	connection.add(root.PersistentFlags())
	benchCommand := newBenchCommand(connection)
	root.AddCommand(
		benchCommand, newVerifyCommand(connection),
		newPutCommand(connection), newGetCommand(connection), newInfoCommand(connection),
		newNBDCommand(connection), newUblkCommand(connection),
		newCompareCommand(), newMergeCommand(), explain.NewCommand(),
		program.NewVersionCommand("initiator"),
	)
	argp.Adopt(root, benchCommand)
	return root
}

// printable is a result that can be printed.
type printable interface{ WriteText(w io.Writer) error }

// printResult prints a result and returns failure, if any. It always prints JSON, so that scripts
// get a document. It prints text only if there is something to report beyond the failure, which
// standard error explains.
func printResult(cmd *cobra.Command, output report.Output, d printable, worthText bool,
	failure error) error {
	var err error
	switch {
	case output == report.JSON:
		err = report.WriteJSON(cmd.OutOrStdout(), d)
	case worthText:
		err = d.WriteText(cmd.OutOrStdout())
	}
	if failure != nil {
		return failure
	}
	return err
}

// sentence returns the text of an error, "" if there is none.
func sentence(err error) string {
	if err == nil {
		return ""
	}
	return program.Sentence(err)
}

// The phases of a run, as documents name them.
const (
	phasePrepare = "prepare" // no relay has been contacted
	phaseConnect = "connect"
	phaseRun     = "run"
	phaseClose   = "close"
)

// phaseError is an error with the phase in which it happened.
type phaseError struct {
	phase string
	err   error
}

func (p *phaseError) Error() string { return p.err.Error() }

func (p *phaseError) Unwrap() error { return p.err }

// inPhase adds to err, unless that is nil, the phase in which it happened.
func inPhase(phase string, err error) error {
	if err == nil {
		return nil
	}
	return &phaseError{phase: phase, err: err}
}

// failureOf describes err for a document.
func failureOf(err error) *report.Failure {
	phase := phaseRun
	if program.IsUsage(err) {
		phase = phasePrepare
	}
	var p *phaseError
	if errors.As(err, &p) {
		phase = p.phase
	}
	return report.FailureOf(phase, err, sentence(err))
}

// volume is the part of a client.Volume that the commands use.
type volume interface {
	Info() client.Info
	Memory() []byte
	Queue(i int) queue
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Flush() error
	NewFlusher() *client.Flusher
	ExtentsContext(ctx context.Context, off, length int64) ([]iomsg.Extent, error)
	Done() <-chan struct{}
	Err() error
	Reopen(reason error) error
	Reconnections() client.Reconnections
	Quarantined() uint64
	Close(ctx context.Context) error
}

// queue is the part of a client.Queue that the commands use; verify uses all of it.
type queue = verify.Queue

// clientVolume is a volume behind a relay.
type clientVolume struct{ *client.Volume }

// Queue returns queue i as the interface.
func (v clientVolume) Queue(i int) queue { return v.Volume.Queue(i) }

func openVolume(ctx context.Context, config client.Config) (volume, error) {
	v, err := client.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	return clientVolume{v}, nil
}

// queuesOf returns the first count queues of a volume as Q, the queue interface of another package.
func queuesOf[Q any](v volume, count int) []Q {
	queues := make([]Q, count)
	for i := range queues {
		queues[i] = v.Queue(i).(Q)
	}
	return queues
}
