// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connectionFlags holds the flags that all commands share.
type connectionFlags struct {
	open     opener
	describe describer

	device         string
	channelName    string
	provider       string
	emulatedDir    string
	wait           string // "auto" or "never"
	protocol       string // of the commands that have the flag
	preempt        string // the same
	hasPreempted   bool
	owner          *client.Owner
	set            *pflag.FlagSet
	controlTimeout time.Duration
	ioTimeout      time.Duration
	logging        logging.Options
	faults         *faults
}

func (c *connectionFlags) add(f *pflag.FlagSet) {
	c.set = f
	f.StringVarP(&c.device, "device", "d", emulated.DefaultHostDevice,
		"Comch device, as the host sees it")
	f.StringVar(&c.channelName, "command-channel-name", client.DefaultChannelName,
		"name of the relay's Comch service")
	f.StringVar(&c.provider, "comch-provider", providers.DefaultComch,
		"Comch provider: emulated or doca")
	f.StringVar(&c.emulatedDir, "emulated-dir", "", `directory of the emulated Comch (default "`+
		emulated.DefaultDirectory()+`")`)
	f.StringVar(&c.wait, "comch-wait", "auto", "doca: whether threads sleep until the device "+
		"wakes them (auto, if it can) or look for work every now and then (never)")
	c.controlTimeout = client.DefaultControlTimeout
	f.Var((*argp.Timeout)(&c.controlTimeout), "control-timeout",
		"timeout for connecting, for each step of closing, and for outstanding requests at the end")
	f.DurationVar(&c.ioTimeout, "io-timeout", client.DefaultIOTimeout,
		"fail the volume when a request takes longer than this")
	c.logging.AddFlags(f)
	c.faults = &faults{}
	c.faults.add(f)
}

// addProtocol adds the flag of commands that only read and write, which is all that the protocols
// of the DOCA applications have.
func (c *connectionFlags) addProtocol(f *pflag.FlagSet) {
	f.StringVar(&c.protocol, "protocol", nativeProtocol, "what the relay speaks: native, or "+
		"doca-2.10, doca-3.0, doca-3.1, or doca-3.2 for a relay of the DOCA storage applications, "+
		"which needs --comch-provider doca unless it is on the emulated libdoca; from doca-3.0 on, --command-channel-name is "+
		client.ChannelName3+" by default")
}

// addPreempt adds the flag of commands that open the volume.
func (c *connectionFlags) addPreempt(f *pflag.FlagSet) {
	f.StringVar(&c.preempt, "preempt", "", "take the volume from this `HOLDER`, by the ID that info "+
		"and the errors of other commands tell, and begin when nothing of it can change the volume "+
		"any more; fails if another holder is there by now")
}

const nativeProtocol = "native"

// version returns the protocol of the applications that the relay speaks, None if it is our own.
func (c *connectionFlags) version() (dialects.Version, error) {
	if c.protocol == "" || c.protocol == nativeProtocol {
		return dialects.None, nil
	}
	v, err := dialects.ParseVersion(c.protocol)
	if err != nil {
		return v, program.Usage(fmt.Errorf("--protocol: %w, or %s", err, nativeProtocol))
	}
	return v, nil
}

// channel returns the name of the relay's Comch service.
func (c *connectionFlags) channel() string {
	if v, _ := c.version(); v >= dialects.DOCA3_0 && !c.set.Changed("command-channel-name") {
		return client.ChannelName3
	}
	return c.channelName
}

// openVolume opens the volume with config, completed by the flags.
func (c *connectionFlags) openVolume(ctx context.Context, config client.Config) (volume, error) {
	if err := c.complete(&config); err != nil {
		return nil, err
	}
	if c.preempt != "" {
		if _, err := controlmsg.ParseHolderID(c.preempt); err != nil {
			return nil, program.Usage(fmt.Errorf("--preempt: %w", err))
		}
	}
	if config.Preempt = c.preempt; c.preempt != "" && config.Owner == nil {
		// A command may open the volume several times, and must not be in its own way.
		if c.owner == nil {
			c.owner = client.NewOwner("")
		}
		config.Owner = c.owner
	}
	if config.BufferSize > controlmsg.MaxBufferSize {
		return nil, program.Usagef("requests of %d bytes are larger than the %d bytes that one can "+
			"have: lower --block-size or --buffer-size", config.BufferSize, controlmsg.MaxBufferSize)
	}
	memory := cmp.Or(config.MemorySize,
		uint64(config.Queues)*uint64(config.Depth)*uint64(config.BufferSize))
	if memory >= announcedMemory {
		config.Logger.Info("allocating memory for buffers", zap.String("memory",
			size.FormatBytes(memory)))
	}
	connected := c.announceWait(config.Logger)
	v, err := c.open(ctx, config)
	connected()
	for begun := time.Now(); config.Exclusive && c.preempt == "" && errors.Is(err, status.InUse) &&
		time.Since(begun) < releaseTime && ctx.Err() == nil; {
		time.Sleep(releaseTime / 4)
		v, err = c.open(ctx, config)
	}
	switch {
	case c.preempt != "" && errors.Is(err, status.NotPermitted):
		return nil, program.Rejected(fmt.Errorf("%w (only a preemptor's clients may take a volume from "+
			"others, which --preempt asks for)", err))
	case config.Exclusive && errors.Is(err, status.NotPermitted):
		return nil, c.notPermitted(ctx, config, err)
	case errors.Is(err, status.InUse):
		return nil, c.inUse(ctx, config, err)
	case err != nil:
		return nil, c.connectError(err)
	}
	if c.preempt != "" && v.Info().HolderAbsent && !c.hasPreempted {
		config.Logger.Warn("nothing was taken from anybody: the holder of --preempt is not there: it "+
			"has ended, or the ID is wrong, or of another volume", zap.String("holder", c.preempt))
	}
	c.hasPreempted = true
	return c.faults.hookVolume(ctx, v, config.Logger), nil
}

// notPermitted adds to an error of opening the volume exclusively what helps against it, if
// anything does.
func (c *connectionFlags) notPermitted(ctx context.Context, config client.Config, err error) error {
	config.Exclusive, config.Owner = false, nil
	info, unknown := c.describe(ctx, config)
	if unknown == nil && info.ReadOnly {
		return program.Rejected(fmt.Errorf("%w (the volume is read-only for clients of this relay, "+
			"even with --overwrite)", err))
	}
	return program.Rejected(fmt.Errorf("%w (only an owner's clients may open the volume "+
		"exclusively, as this command does without --overwrite)", err))
}

// inUse adds to an error what helps against it. Sharing does not help if the volume itself admits
// only one writer.
func (c *connectionFlags) inUse(ctx context.Context, config client.Config, err error) error {
	if c.preempt != "" {
		return program.Rejected(fmt.Errorf("%w (nothing has changed: decide again whom to replace)", err))
	}
	config.Exclusive, config.Owner = false, nil
	info, unknown := c.describe(ctx, config)
	if unknown == nil && info.Exclusive && info.Holder != "" {
		return program.Rejected(fmt.Errorf("%w (wait until that client is done, or take the volume from "+
			"it with --preempt: the volume admits one writer at a time, even with --overwrite)", err))
	}
	return c.connectError(err)
}

// announcedMemory is so much memory, in bytes, that allocating it takes a while.
const announcedMemory = 1 << 30

// announceAfter is how long connecting may take before the user is told of it.
const announceAfter = time.Second

// announceWait says that connecting takes time, unless the function that it returns is called soon.
func (c *connectionFlags) announceWait(log *zap.Logger) (connected func()) {
	timer := time.AfterFunc(announceAfter, func() {
		fields := []zap.Field{zap.String("channel", c.channel()), zap.String("device", c.device),
			zap.Duration("timeout", c.controlTimeout)}
		if place := c.elsewhere(); place != "" {
			fields = append(fields, zap.String("next", place))
		}
		log.Warn("still connecting: is \"zc-relay run\" serving this channel, and its target up?",
			fields...)
	})
	return func() { timer.Stop() }
}

// releaseTime is how long to wait for a volume that is in use: a client that was killed a moment
// ago may still have it.
const releaseTime = time.Second

// describeVolume describes the volume without opening it.
func (c *connectionFlags) describeVolume(ctx context.Context) (client.Info, error) {
	var config client.Config
	if err := c.complete(&config); err != nil {
		return client.Info{}, err
	}
	defer c.announceWait(config.Logger)()
	info, err := c.describe(ctx, config)
	return info, c.connectError(err)
}

// complete sets what the flags determine.
func (c *connectionFlags) complete(config *client.Config) error {
	if c.controlTimeout <= 0 || c.ioTimeout <= 0 {
		return program.Usagef("--control-timeout %v and --io-timeout %v must be positive", c.controlTimeout,
			c.ioTimeout)
	}
	if c.device == "" {
		return program.Usagef("--device is empty: name the Comch device, for instance %s, or leave "+
			"the flag out", emulated.DefaultHostDevice)
	}
	if c.wait != "auto" && c.wait != "never" {
		return program.Usagef("--comch-wait %q is neither auto nor never", c.wait)
	}
	if c.wait != "auto" && c.provider == providers.DefaultComch {
		return program.Usagef("--comch-wait %s has no effect without --comch-provider doca", c.wait)
	}
	logger, _, err := logging.New("initiator", c.logging)
	if err != nil {
		return program.Usage(err)
	}
	provider, err := providers.Comch(c.provider,
		providers.ComchOptions{Directory: c.emulatedDir, NeverWait: c.wait == "never",
			Logger: logger})
	if err != nil {
		return program.Usage(err)
	}
	if err := c.faults.check(logger); err != nil {
		return err
	}
	config.Provider = c.faults.hookComch(provider)
	config.Device, config.ChannelName = c.device, c.channel()
	config.ControlTimeout, config.IOTimeout = c.controlTimeout, c.ioTimeout
	config.Software, config.Logger = buildinfo.String("initiator"), logger
	config.Protocol, err = c.version()
	return err
}

// connectError gives an error of opening or describing a volume its exit code and, where it is not
// obvious, what the user can do.
func (c *connectionFlags) connectError(err error) error {
	switch {
	case err == nil:
		return nil
	case providers.IsAbsent(err):
		return program.Usage(fmt.Errorf("--comch-provider %s: %w", c.provider, err))
	case errors.Is(err, status.InvalidValue), errors.Is(err, status.TooBig):
		return program.Usage(err) // the request exceeds what the relay or the volume supports
	case errors.Is(err, status.InUse):
		return program.Rejected(fmt.Errorf("%w (wait until that client is done, or take the volume from "+
			"it with --preempt; commands that write share a volume if all of them are started with "+
			"--overwrite)", err))
	}
	_, replied := errors.AsType[*controlmsg.Error](err)
	if !replied && (errors.Is(err, status.TimeOut) || errors.Is(err, context.DeadlineExceeded)) {
		err = fmt.Errorf("%w (this command has waited %v for the relay, and for the target behind it: "+
			"is one of them stopped or busy? --control-timeout gives them longer)", err,
			c.controlTimeout)
	}
	_, isLocal := errors.AsType[*comch.NoDeviceError](err)
	if !replied && !isLocal && errors.Is(err, status.NotFound) {
		err = fmt.Errorf("%w: is \"zc-relay run\" serving this channel?", err)
		if place := c.elsewhere(); place != "" {
			err = fmt.Errorf("%w (%s)", err, place)
		}
	}
	return program.CannotConnect(err)
}

// elsewhere says where the relay may be if it is not found, "" for nowhere else.
func (c *connectionFlags) elsewhere() string {
	return providers.Elsewhere(c.provider, c.emulatedDir)
}

// closeVolume closes the volume in an orderly way even if ctx has been cancelled. It returns
// failure, if any, in preference to an error from closing. It is no error if the session ends
// meanwhile, for instance because the relay is being restarted: everything that the command has
// asked for is done.
func closeVolume(ctx context.Context, v volume, failure error) error {
	failure = explained(v, failure)
	err := exceptLoss(v.Close(context.WithoutCancel(ctx)))
	if failure != nil {
		return failure
	}
	if client.IsConnectionLost(status.CodeOf(err)) {
		return nil
	}
	return inPhase(phaseClose, err)
}

// disconnectReasonTimeout bounds the wait for the reason why a connection ended, which can arrive
// after its requests have failed.
const disconnectReasonTimeout = time.Second

// explained adds to the failure of a request the reason why the connection ended, if that made it
// fail, and the exit code that belongs to the reason.
func explained(v volume, failure error) error {
	if failure == nil || !client.IsConnectionLost(status.CodeOf(failure)) {
		return failure
	}
	select {
	case <-v.Done():
	case <-time.After(disconnectReasonTimeout):
	}
	reason := v.Err()
	if reason == nil || errors.Is(failure, context.Canceled) {
		return failure
	}
	if !strings.Contains(failure.Error(), reason.Error()) {
		failure = fmt.Errorf("%w: %w", failure, reason)
	}
	if isTaken(reason) {
		failure = program.WithExitCode(program.ExitTaken, failure)
	}
	return failure
}

// isTaken reports whether a volume has ended because it belongs to another client now. One that was
// cut off when it lost the volume learns only that it may not come back.
func isTaken(reason error) bool {
	return errors.Is(reason, client.ErrPreempted) || errors.Is(reason, status.NotPermitted)
}

func (c *connectionFlags) report() document.Connection {
	return document.Connection{Provider: c.provider, Device: c.device, Channel: c.channel()}
}

// reconnectFlags determine whether a lost volume is reopened, and by which policy.
type reconnectFlags struct {
	set          *pflag.FlagSet
	enabled      bool
	attempts     retry.Count
	timeout      retry.Bound
	firstPause   time.Duration
	longestPause time.Duration
}

// reconnectDetails lists the flags that require --reconnect.
var reconnectDetails = []string{"reconnect-attempts", "reconnect-timeout", "reconnect-first-pause",
	"reconnect-longest-pause"}

func (r *reconnectFlags) add(f *pflag.FlagSet) {
	r.set = f
	r.attempts, r.timeout = retry.AnyNumber(), retry.Within(client.DefaultReconnectTotal)
	f.BoolVar(&r.enabled, "reconnect", false,
		"reopen the volume when it is lost, and repeat the requests that were outstanding")
	f.Var(&r.attempts, "reconnect-attempts",
		`attempts to reopen the volume after each loss: a number, 0 for none, or "infinite"`)
	f.Var(&r.timeout, "reconnect-timeout",
		`how long after a loss to start attempts: a duration, 0 for none, or "infinite"`)
	f.DurationVar(&r.firstPause, "reconnect-first-pause", retry.DefaultFirstPause,
		"pause after the first failed attempt; it doubles with each further one")
	f.DurationVar(&r.longestPause, "reconnect-longest-pause", client.DefaultReconnectLongestPause,
		"longest pause between attempts")
}

// policy returns the policy, nil if the volume is not to be reopened.
func (r *reconnectFlags) policy() (*retry.Policy, error) {
	if !r.enabled {
		for _, name := range reconnectDetails {
			if r.set.Changed(name) {
				return nil, program.Usagef("--%s requires --reconnect", name)
			}
		}
		return nil, nil
	}
	if r.firstPause <= 0 || r.longestPause < r.firstPause {
		return nil,
			program.Usagef("--reconnect-first-pause %v must be positive and at most --reconnect-longest-pause %v", r.firstPause,
				r.longestPause)
	}
	return &retry.Policy{Attempts: r.attempts, Total: r.timeout, FirstPause: r.firstPause,
		LongestPause: r.longestPause}, nil
}

// exceptLoss returns err, or nil for a loss of writes that no flush could report any more: the
// result reports it.
func exceptLoss(err error) error {
	if errors.Is(err, client.ErrWritesLost) {
		return nil
	}
	return err
}

// The queues that the protocol allows, and their depths. A relay's own limits are lower, but by the
// time that it announces them the threads exist.
var (
	queueCounts = program.Range{Most: controlmsg.MaxQueues, Example: "4"} // 0 is the default
	depths      = program.Range{Least: 1, Most: controlmsg.MaxDepth, Example: "32"}
)

// queueFlags determine the queues and the threads that serve them.
type queueFlags struct {
	queues int
	cpus   []string
	depth  int
	poll   string
}

func (q *queueFlags) add(f *pflag.FlagSet, depth int) {
	f.IntVar(&q.queues, "queues", 0,
		"number of queues, each with an unpinned thread (default: 2, or 1 with fewer than 4 cores)")
	f.StringArrayVar(&q.cpus, "cpu", nil,
		"add a queue whose thread is pinned to this core; repeatable, accepts `cores` like 0-3")
	f.IntVar(&q.depth, "queue-depth", depth, "requests outstanding on each queue")
	program.Limit(f, "queues", queueCounts)
	program.Limit(f, "queue-depth", depths)
	f.StringVar(&q.poll, "poll", progress.Adaptive.String(),
		"what an idle thread does: adaptive, busy or event")
}

// resolve returns the number of queues and the cores of their threads, none if they are not pinned.
func (q *queueFlags) resolve() (queues int, cpus []int, err error) {
	for _, list := range q.cpus {
		part, err := affinity.ParseList(list)
		if err != nil {
			return 0, nil, program.Usage(fmt.Errorf("--cpu: %w", err))
		}
		cpus = append(cpus, part...)
	}
	if err := affinity.Check(cpus); err != nil {
		return 0, nil, program.Usage(fmt.Errorf("--cpu: %w", err))
	}
	if len(cpus) > controlmsg.MaxQueues {
		return 0, nil, program.Usagef("--cpu: %d queues exceed the protocol's limit of %d", len(cpus),
			controlmsg.MaxQueues)
	}
	queues = q.queues
	switch {
	case len(cpus) > 0:
		queues = len(cpus)
	case queues == 0:
		if queues, err = affinity.PollingThreads(); err != nil {
			return 0, nil, err
		}
	}
	program.ReserveProcessors(queues)
	return queues, cpus, nil
}

// policy returns the polling policy of the threads.
func (q *queueFlags) policy() (progress.Policy, error) {
	mode, err := progress.ParseMode(q.poll)
	if err != nil {
		return progress.Policy{}, program.Usage(fmt.Errorf("--poll: %w", err))
	}
	return progress.Policy{Mode: mode}, nil
}

// requestLength checks the value of a flag for the length of a request.
func requestLength(flag string, value size.Bytes) (uint32, error) {
	if value == 0 || value > math.MaxUint32 {
		return 0, program.Usagef("--%s %v is not between 1 and %d bytes", flag, value,
			uint32(math.MaxUint32))
	}
	return uint32(value), nil
}
