package relay

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// TestClientsDoNotLearnTheNamesOfOtherVolumes in any state of the connection to the target, which
// names its volumes to the relay.
func TestClientsDoNotLearnTheNamesOfOtherVolumes(t *testing.T) {
	l := &targetLink{address: netip.MustParseAddrPort("10.0.0.5:7470"), channel: &channel{}}
	l.channel.settings.Store(&ChannelConfig{Volume: "other"})
	for state := LinkConnecting; state <= LinkStandBy; state++ {
		err := l.unavailable(&LinkStatus{State: state, LastError: status.Errorf(status.NotFound,
			`the target has no volume "other": it has ["secret"]`)})
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("state %v: %v", state, err)
		}
	}
}
