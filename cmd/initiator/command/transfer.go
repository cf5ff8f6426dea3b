// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/transfer"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// The defaults of put and get: enough outstanding requests to keep the transport busy while files
// are read and written.
const (
	transferQueues     = 1
	transferDepth      = 16
	transferBufferSize = size.MiB
)

// transferFlags holds the flags that put and get share.
type transferFlags struct {
	connection *connectionFlags
	queues     int
	depth      int
	bufferSize size.Bytes
	poll       string
	offset     size.Bytes
	reconnect  reconnectFlags
	resume     bool
	output     report.Output
}

// transferSchema names the format of the documents of put and get. Fields may be added within a
// version.
const transferSchema = "zc-relay.transfer/1"

// transferReport is what put and get print as JSON.
type transferReport struct {
	Schema     string              `json:"schema"`
	Operation  string              `json:"operation"` // "put" or "get"
	File       string              `json:"file"`
	Connection document.Connection `json:"connection"`
	// Offset is where the data begins in the volume, and Bytes how much was moved. Resumed is how
	// much a former call had moved before.
	Offset         uint64 `json:"offset_bytes"`
	Resumed        uint64 `json:"resumed_bytes,omitempty"`
	Bytes          uint64 `json:"bytes"`
	DurationNs     int64  `json:"duration_ns"`
	BytesPerSecond uint64 `json:"bytes_per_second"`
	// Reconnections is nil unless the volume is reopened after a loss.
	Reconnections *document.Reconnections `json:"reconnections,omitempty"`
	Error         *report.Failure         `json:"error,omitempty"`
}

// run calls move, which carries out an operation on a file, and prints its outcome.
func (t *transferFlags) run(cmd *cobra.Command, operation, file string,
	move func(*transferReport) error) error {
	r := &transferReport{Schema: transferSchema, Operation: operation, File: file,
		Connection: t.connection.report(), Offset: uint64(t.offset)}
	failure := move(r)
	if t.output != report.JSON {
		return failure
	}
	r.Error = failureOf(failure)
	if err := report.WriteJSON(cmd.OutOrStdout(), r); failure == nil {
		return err
	}
	return failure
}

func (t *transferFlags) add(f *pflag.FlagSet) {
	t.bufferSize = transferBufferSize
	f.Var(&t.offset, "offset", "offset in the volume; any byte, not only a block boundary")
	f.IntVar(&t.queues, "queues", transferQueues, "number of queues, each with a thread")
	f.IntVar(&t.depth, "queue-depth", transferDepth, "requests outstanding on each queue")
	program.Limit(f, "queues", program.Range{Least: 1, Most: queueCounts.Most,
		Example: queueCounts.Example})
	program.Limit(f, "queue-depth", depths)
	f.Var(&t.bufferSize, "buffer-size", "maximum length of a request")
	f.StringVar(&t.poll, "poll", progress.Adaptive.String(),
		"what an idle thread does: adaptive, busy or event")
	t.connection.addPreempt(f)
	t.reconnect.add(f)
	f.BoolVar(&t.resume, "resume", false, "remember in FILE"+stateSuffix+" how far the copy got, "+
		"and, if it is there, go on from there")
	t.output = report.Text
	t.output.AddFlag(f)
}

// open opens the volume for a transfer with config, completed by the flags.
func (t *transferFlags) open(ctx context.Context, config client.Config) (volume, transfer.Config,
	error) {
	queue := queueFlags{queues: t.queues, poll: t.poll}
	policy, err := queue.policy()
	if err != nil {
		return nil, transfer.Config{}, err
	}
	length, err := requestLength("buffer-size", t.bufferSize)
	if err != nil {
		return nil, transfer.Config{}, err
	}
	if config.Reconnect, err = t.reconnect.policy(); err != nil {
		return nil, transfer.Config{}, err
	}
	program.ReserveProcessors(t.queues)
	config.Queues, config.Depth, config.BufferSize = t.queues, t.depth, length
	v, err := t.connection.openVolume(ctx, config)
	if err != nil {
		return nil, transfer.Config{}, err
	}
	c := transfer.Config{
		Volume: v, Queues: queuesOf[transfer.Queue](v, t.queues), Depth: t.depth,
		BufferSize: length, Policy: policy, DrainTimeout: t.connection.controlTimeout,
	}
	if config.Reconnect != nil {
		c.Reconnections = new(document.Reconnections)
	}
	return v, c, nil
}

// standardStream is the file name that stands for standard input or output.
const standardStream = "-"

func newPutCommand(connection *connectionFlags) *cobra.Command {
	flags, guard, allowEmpty := transferFlags{connection: connection}, guard{}, false
	cmd := &cobra.Command{
		Use:   "put FILE",
		Short: "Copy a file to the volume",
		Long: `put copies FILE, or standard input for "-", to the volume and flushes it. It writes
nothing if the file does not fit. To write a part of a block, it reads, changes, and
writes back the whole block. Blocks of zeroes cross no network if the volume can
write zeroes without data, and take up no space if it can have holes.

With --resume, the same command goes on where an interrupted one got. It refuses if
the file or the volume is another one, or if samples of what was copied differ.`,
		Args: program.Operands("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.run(cmd, "put", args[0], func(r *transferReport) error {
				err := put(cmd, &flags, &guard, r)
				if err == nil && r.Bytes == 0 && r.Resumed == 0 && !allowEmpty {
					err = errEmpty(r.File)
				}
				return err
			})
		},
	}
	flags.add(cmd.Flags())
	guard.add(cmd.Flags(), "write although another client has the volume open")
	cmd.Flags().BoolVar(&allowEmpty, "allow-empty", false,
		"succeed even if FILE or standard input has no byte")
	return cmd
}

// errEmpty says that the source of put has no byte.
func errEmpty(path string) error {
	what := fmt.Sprintf("%q is", path)
	if path == standardStream {
		what = "standard input was"
	}
	return errors.New(what + " empty, so nothing was written: has the command that made it failed? " +
		"(--allow-empty accepts it)")
}

func put(cmd *cobra.Command, flags *transferFlags, guard *guard, r *transferReport) error {
	ctx, path := cmd.Context(), r.File
	source, size, closeSource, err := openSource(ctx, cmd.InOrStdin(), path)
	if err != nil {
		return err
	}
	defer closeSource()
	state := transferState{Operation: r.Operation, Offset: uint64(flags.offset), Length: size}
	if flags.resume {
		if state.Source, err = lockSource(source); err != nil {
			return err
		}
	}
	v, config, err := flags.open(ctx, client.Config{SyncDepth: 1, Exclusive: !guard.overwrite})
	if err != nil {
		return err
	}
	if flags.resume {
		if err := resumePut(v, source.(*os.File), &state, &config); err != nil {
			return closeVolume(ctx, v, named(path, err))
		}
	}
	progress := &transferProgress{w: cmd.ErrOrStderr(), size: size}
	config.Observe = progress.start(state.Done)
	moved, err := transfer.Put(ctx, config, source, size-state.Done, state.Offset+state.Done)
	switch {
	case err != nil && flags.resume:
		err = resumable(err)
	case flags.resume:
		err = state.remove()
	}
	r.Reconnections = config.Reconnections
	r.Reconnections.Add(v.Reconnections())
	err = closeVolume(ctx, v, named(path, err))
	progress.end(r, moved, err)
	return err
}

// resumable tells the user that a transfer with --resume has not been in vain.
func resumable(err error) error {
	return fmt.Errorf("%w (the same command goes on from there)", err)
}

// lockSource keeps other transfers with --resume away from the source, and identifies it.
func lockSource(source io.Reader) (*fileIdentity, error) {
	file, ok := source.(*os.File)
	if !ok {
		return nil, program.Usagef("--resume needs a file, and standard input is none")
	}
	if err := output.Lock(file); err != nil {
		return nil, program.Usage(err)
	}
	return identityOf(file)
}

// resumePut finds out where to begin, and moves the source there.
func resumePut(v volume, source *os.File, state *transferState, config *transfer.Config) error {
	info := v.Info()
	if err := state.resume(source.Name(), &info); err != nil {
		return err
	}
	if err := state.compare(v, source); err != nil {
		return err
	}
	config.Checkpoint = state.checkpoints(func() error { return nil }) // Put has flushed
	_, err := source.Seek(int64(state.Done), io.SeekStart)
	return err
}

func named(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", path, err)
}

// openSource opens the source of put and returns its size, if known.
func openSource(ctx context.Context, stdin io.Reader, path string) (source io.Reader, size uint64,
	end func(), err error) {
	if path == standardStream {
		source, end := interruptible(ctx, stdin)
		return source, transfer.UnknownSize, end, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, syscall.ENXIO) {
		return nil, 0, nil, program.Usagef("%q is a socket or a device without a driver: give a file, "+
			"a block device, or - for standard input", path)
	}
	if err != nil {
		return nil, 0, nil, program.Usage(err)
	}
	end = func() { _ = file.Close() } // only read
	about, err := file.Stat()
	if err == nil && about.IsDir() {
		err = program.Usagef("%q is a directory", path)
	}
	if err != nil {
		end()
		return nil, 0, nil, err
	}
	if !about.Mode().IsRegular() {
		return file, transfer.UnknownSize, end, nil
	}
	return file, uint64(about.Size()), end, nil
}

// interruptible returns a reader that ends with ctx, even while source is silent, as a terminal or
// pipe may be for ever. Closing the ends of the pipe between them never fails.
func interruptible(ctx context.Context, source io.Reader) (io.Reader, func()) {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(writer, source, make([]byte, transferBufferSize))
		_ = writer.CloseWithError(err)
	}()
	stop := context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Cause(ctx)) })
	return reader, func() {
		stop()
		_ = reader.Close()
	}
}

func newGetCommand(connection *connectionFlags) *cobra.Command {
	flags := transferFlags{connection: connection}
	var length size.Bytes
	cmd := &cobra.Command{
		Use:   "get FILE",
		Short: "Copy the volume to a file",
		Long: `get copies the volume, or a range of it, to FILE, or to standard output for "-", which
uses a single queue. The file appears, or changes, only once it is complete and on disk.
Zeroes become holes of the file. Holes of the volume cross no network if the volume
knows where they are.

With --resume, the data goes to FILE` + output.PartialSuffix + ` until it is complete, and the same command
goes on where an interrupted one got. It refuses if the volume is another one, or if
samples of what was copied differ.`,
		Args: program.Operands("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			g := getRequest{flags: &flags, path: args[0], length: uint64(length),
				toEnd: !cmd.Flags().Changed("length")}
			if g.path == standardStream && flags.resume {
				return program.Usagef("--resume needs a file, and standard output is none")
			}
			if g.path == standardStream && flags.output == report.JSON {
				return program.Usagef("-o json and the volume cannot both go to standard output")
			}
			return flags.run(cmd, "get", g.path, func(r *transferReport) error {
				return g.run(cmd, r)
			})
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().Var(&length, "length", "number of bytes (default: to the end of the volume)")
	return cmd
}

// getRequest holds the arguments of one call of get.
type getRequest struct {
	flags  *transferFlags
	path   string
	length uint64
	toEnd  bool
}

func (g *getRequest) run(cmd *cobra.Command, r *transferReport) error {
	ctx := cmd.Context()
	if g.path != standardStream {
		if err := output.Check(g.path); err != nil {
			return program.Usage(err)
		}
	}
	// One request at a time asks for holes, or compares samples.
	v, config, err := g.flags.open(ctx, client.Config{SyncDepth: 1, ReadOnly: true})
	if err != nil {
		return err
	}
	if err := g.resolve(v.Info()); err != nil {
		return closeVolume(ctx, v, named(g.path, err))
	}
	progress := &transferProgress{w: cmd.ErrOrStderr(), size: g.length}
	var moved uint64
	if g.flags.resume {
		moved, err = g.transferRest(ctx, v, config, progress)
	} else {
		moved, err = g.transfer(ctx, config, progress, cmd.OutOrStdout())
	}
	r.Reconnections = config.Reconnections
	r.Reconnections.Add(v.Reconnections())
	err = closeVolume(ctx, v, named(g.path, err))
	progress.end(r, moved, err)
	return err
}

// resolve checks the range against the volume, and fills in its length.
func (g *getRequest) resolve(info client.Info) error {
	offset := uint64(g.flags.offset)
	if err := document.CheckRange(&info, offset, g.length); err != nil {
		return program.Usage(err)
	}
	if g.toEnd {
		g.length = info.Size - offset
	}
	if g.toEnd && g.length == 0 {
		return program.Usagef("--offset %v is the end of volume %q, which has %v: lower it", size.Bytes(offset), info.Name, size.Bytes(info.Size))
	}
	return nil
}

func (g *getRequest) transfer(ctx context.Context, config transfer.Config,
	progress *transferProgress, stdout io.Writer) (uint64, error) {
	offset := uint64(g.flags.offset)
	config.Observe = progress.start(0)
	if g.path == standardStream {
		return transfer.Get(ctx, config, output.Stream{Writer: stdout}, offset, g.length)
	}
	target, err := output.Create(g.path)
	if err != nil {
		return 0, err
	}
	moved, err := transfer.Get(ctx, config, target.Sink(), offset, g.length)
	return moved, target.Finish(err)
}

// transferRest transfers what a former call has not.
func (g *getRequest) transferRest(ctx context.Context, v volume, config transfer.Config,
	progress *transferProgress) (uint64, error) {
	state := transferState{Operation: "get", Offset: uint64(g.flags.offset), Length: g.length}
	target, err := output.Continue(g.path)
	if err != nil {
		return 0, program.Usage(err)
	}
	info := v.Info()
	if err := g.beginRest(v, &info, target, &state); err != nil {
		return 0, target.Finish(err)
	}
	config.Observe = progress.start(state.Done)
	config.Checkpoint = state.checkpoints(target.Sync)
	moved, err := transfer.Get(ctx, config, target.Rest(int64(state.Done)),
		state.Offset+state.Done, g.length-state.Done)
	if err = target.Finish(err); err != nil {
		return moved, resumable(err)
	}
	return moved, state.remove()
}

// beginRest finds out where to begin.
func (g *getRequest) beginRest(v volume, info *client.Info, target *output.File,
	state *transferState) error {
	if err := state.resume(g.path, info); err != nil {
		return err
	}
	present, err := target.Size()
	if err != nil {
		return err
	}
	if _, err := os.Stat(state.path); err != nil && present > 0 {
		return program.Usagef("%q is there, but not %q, which says what it is (remove it to begin "+
			"anew)", g.path+output.PartialSuffix, state.path)
	}
	if err := state.compare(v, target); err != nil {
		return err
	}
	return state.save()
}

// transferProgress shows the progress and the result of a transfer on standard error.
type transferProgress struct {
	w     io.Writer
	size  uint64 // or transfer.UnknownSize
	bar   *program.Progress
	begun time.Time // zero until the transfer starts
	done  uint64    // bytes that a former call has moved
}

// start starts the clock of a transfer of which a former call has moved done bytes. It returns what
// shows how many bytes this call has moved.
func (t *transferProgress) start(done uint64) func(bytes uint64) {
	total := int64(program.UnknownTotal)
	if t.size != transfer.UnknownSize {
		total = int64(t.size)
	}
	t.bar, t.begun, t.done = program.NewProgress(t.w, total, done), time.Now(), done
	return func(bytes uint64) { t.bar.Show(done + bytes) }
}

// end fills the report, and prints the result of a successful transfer.
func (t *transferProgress) end(r *transferReport, bytes uint64, err error) {
	if !t.begun.IsZero() {
		t.bar.Clear()
		taken := max(time.Since(t.begun), 1)
		r.Resumed, r.Bytes, r.DurationNs = t.done, bytes, int64(taken)
		r.BytesPerSecond = uint64(float64(bytes) / taken.Seconds())
	}
	if err == nil {
		former := ""
		if t.done > 0 {
			former = fmt.Sprintf(" after %d of an earlier call", t.done)
		}
		fmt.Fprintf(t.w, "%s %s: %d bytes%s in %s, %s\n", r.Operation, r.File, bytes, former,
			size.FormatDuration(time.Duration(r.DurationNs)),
			size.FormatThroughput(float64(r.BytesPerSecond)))
	}
	text := &document.Table{}
	text.Reconnections(r.Reconnections)
	fmt.Fprint(t.w, text.String())
}
