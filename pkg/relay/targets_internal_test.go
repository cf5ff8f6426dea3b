package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// TestClientsDoNotLearnTheNamesOfOtherVolumes in any state of the connection to the target, which
// names its volumes to the relay.
func TestClientsDoNotLearnTheNamesOfOtherVolumes(t *testing.T) {
	l := &targetLink{address: netip.MustParseAddrPort("10.0.0.5:7470"), channel: &channel{}}
	l.channel.settings.Store(&ChannelConfig{Volume: "other"})
	for state := LinkConnecting; state <= LinkStandBy; state++ {
		err := l.unavailable(&LinkStatus{State: state, LastError: &noVolumeError{
			status.Errorf(status.NotFound, `the target has no volume "other": it has ["secret"]`)}})
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("state %v: %v", state, err)
		}
	}
}

// A device that the relay lacks fails with the same code as a volume that the target lacks.
func TestOnlyATargetsAnswerMeansThatItHasNoVolume(t *testing.T) {
	l := &targetLink{address: netip.MustParseAddrPort("10.0.0.5:7470"), channel: &channel{}}
	l.channel.settings.Store(&ChannelConfig{Volume: "disk"})
	s := &session{log: zap.NewNop()}
	failed := status.Errorf(status.NotFound, "there is no device")
	for _, c := range []struct {
		err  error
		code status.Code
		text string
	}{
		{failed, status.NotConnected, "there is no device"},
		{&noVolumeError{failed}, status.NotFound, `has no volume "disk"`},
	} {
		cause := fmt.Errorf("open volume: %w", c.err)
		for _, err := range []error{s.tellVolume(l, cause),
			l.unavailable(&LinkStatus{State: LinkWaiting, LastError: cause})} {
			if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("for %v, clients are told %v", c.err, err)
			}
		}
	}
}
