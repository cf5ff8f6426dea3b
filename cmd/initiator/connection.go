package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connectionFlags are the flags that all commands take.
type connectionFlags struct {
	open opener

	device         string
	channelName    string
	provider       string
	emulatedDir    string
	controlTimeout time.Duration
	ioTimeout      time.Duration
	logging        logging.Options
}

func (c *connectionFlags) add(f *pflag.FlagSet) {
	f.StringVarP(&c.device, "device", "d", emulated.DefaultHostDevice, "Comch device, as the host sees it")
	f.StringVar(&c.channelName, "command-channel-name", client.DefaultChannelName, "name of the relay's Comch service")
	f.StringVar(&c.provider, "comch-provider", providers.DefaultComch, "Comch provider: emulated or doca")
	f.StringVar(&c.emulatedDir, "emulated-dir", "", `directory of the emulated Comch (default "`+emulated.DefaultDirectory()+`")`)
	f.DurationVar(&c.controlTimeout, "control-timeout", client.DefaultControlTimeout, "bound of connecting, of each step of closing, and of the wait for outstanding requests at the end")
	f.DurationVar(&c.ioTimeout, "io-timeout", client.DefaultIOTimeout, "how long a request may take before the volume is given up")
	c.logging.AddFlags(f)
}

// openVolume opens the volume as config says, which lacks only what the flags
// decide.
func (c *connectionFlags) openVolume(ctx context.Context, config client.Config) (volume, error) {
	if c.controlTimeout <= 0 || c.ioTimeout <= 0 {
		return nil, program.Usagef("--control-timeout %v and --io-timeout %v must be positive", c.controlTimeout, c.ioTimeout)
	}
	logger, _, err := logging.New("initiator", c.logging)
	if err != nil {
		return nil, program.Usage(err)
	}
	provider, err := providers.Comch(c.provider, c.emulatedDir, logger)
	if err != nil {
		return nil, program.Usage(err)
	}
	config.Provider, config.Device, config.ChannelName = provider, c.device, c.channelName
	config.ControlTimeout, config.IOTimeout = c.controlTimeout, c.ioTimeout
	config.Software, config.Logger = buildinfo.String("initiator"), logger
	v, err := c.open(ctx, config)
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, status.InvalidValue), errors.Is(err, status.TooBig):
		return nil, program.Usage(err) // more was asked for than is offered
	}
	return nil, program.CannotConnect(err)
}

// closeVolume closes the volume in order even if ctx has been cancelled. It
// returns failure, which explains more, if there is one.
func closeVolume(ctx context.Context, v volume, failure error) error {
	failure = explained(v, failure)
	err := exceptLoss(v.Close(context.WithoutCancel(ctx)))
	if failure != nil {
		return failure
	}
	return during(phaseClose, err)
}

// lastWordsTimeout is how long the reason for the end of a connection may
// follow the failure of the requests on it.
const lastWordsTimeout = time.Second

// explained adds to the failure of a request why the connection has ended, if
// that is what made it fail.
func explained(v volume, failure error) error {
	if failure == nil || !supervisor.LostConnection(status.CodeOf(failure)) {
		return failure
	}
	select {
	case <-v.Done():
	case <-time.After(lastWordsTimeout):
	}
	reason := v.Err()
	if reason == nil || errors.Is(failure, context.Canceled) || strings.Contains(failure.Error(), reason.Error()) {
		return failure
	}
	return fmt.Errorf("%w: %w", failure, reason)
}

func (c *connectionFlags) report() document.Connection {
	return document.Connection{Provider: c.provider, Device: c.device, Channel: c.channelName}
}
