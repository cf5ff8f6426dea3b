// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var anAddress = netip.MustParseAddrPort("10.0.0.5:7470")

// TestClientsDoNotLearnTheNamesOfOtherVolumes in any state of the connection to the target, which
// names its volumes to the relay.
func TestClientsDoNotLearnTheNamesOfOtherVolumes(t *testing.T) {
	l := &Link{Address: anAddress}
	for _, state := range []LinkState{LinkConnecting, LinkReady, LinkWaiting, LinkGivenUp,
		LinkStandBy} {
		err := l.unavailable(&LinkStatus{State: state, LastError: &noVolumeError{
			status.Errorf(status.NotFound, `the target has no volume "other": it has ["secret"]`),
			anAddress, "other"}})
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("state %v: %v", state, err)
		}
	}
}

// A device that the relay lacks fails with the same code as a volume that the target lacks.
func TestOnlyATargetsAnswerMeansThatItHasNoVolume(t *testing.T) {
	l := &Link{Address: anAddress}
	failed := status.Errorf(status.NotFound, "there is no device")
	for _, c := range []struct {
		err  error
		code status.Code
		text string
	}{
		{failed, status.NotConnected, "there is no device"},
		{&noVolumeError{failed, anAddress, "disk"}, status.NotFound, `has no volume "disk"`},
	} {
		cause := fmt.Errorf("open volume: %w", c.err)
		err := l.unavailable(&LinkStatus{State: LinkWaiting, LastError: cause})
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("for %v, clients are told %v", c.err, err)
		}
		err = ForClient(cause)
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("for %v, the client of a session is told %v", c.err, err)
		}
	}
}

// TestTheRoleOfATarget plays each event in each role through the code that causes it.
func TestTheRoleOfATarget(t *testing.T) {
	for event, next := range map[roleEvent][3]role{
		isReady:          {mayOwn: mayOwn, standsBy: mayOwn, doubtful: doubtful},
		answersStandBy:   {mayOwn: standsBy, standsBy: standsBy, doubtful: standsBy},
		anotherTakesOver: {mayOwn: doubtful, standsBy: standsBy, doubtful: doubtful},
	} {
		for from := range role(len(next)) {
			set := New(&Config{OnChange: func() {}, Logger: zap.NewNop(), Outages: new(Outages)},
				&Settings{Addresses: []netip.AddrPort{anAddress,
					netip.MustParseAddrPort("10.0.0.6:7470")}})
			one, other := set.members[0], set.members[1]
			one.status.role = from
			other.status.State = LinkReady
			switch event {
			case isReady:
				one.becomeReady(&Connection{Volume: &controlmsg.OpenVolumeReply{}})
			case answersStandBy:
				one.setWaiting(retry.Policy{}.Begin(time.Time{}), status.NoLock, time.Time{})
			case anotherTakesOver:
				one.status.State = LinkReady
				set.tookOver(other)
			}
			if got := one.snapshot().role; got != next[from] {
				t.Errorf("event %d in role %d leads to role %d, want %d", event, from, got, next[from])
			}
			takesOver := other.snapshot().role == doubtful
			if takesOver != (event == isReady && from == standsBy) {
				t.Errorf("event %d in role %d: the target takes over: %v", event, from, takesOver)
			}
		}
	}
}

func TestATargetThatRejectsTheRelayIsNotCalledDown(t *testing.T) {
	l := &Link{Address: netip.MustParseAddrPort("127.0.0.1:1")}
	for _, c := range []struct {
		cause error
		want  string
	}{
		{&controlmsg.Error{Code: status.BadConfig}, "rejects this relay: attempt"},
		{&controlmsg.Error{Code: status.NotPermitted}, "rejects this relay: attempt"},
		{&controlmsg.Error{Code: status.Authentication}, "rejects this relay: attempt"},
		{&controlmsg.Error{Code: status.Shutdown}, "is down: attempt"},
		{status.NotPermitted, "is down: attempt"}, // of this machine
	} {
		err := l.unavailable(&LinkStatus{State: LinkWaiting, LastError: c.cause})
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.cause, err, c.want)
		}
	}
}

func TestAPortThatDoesNotAnswerAsATargetIsSuspected(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{status.Errorf(status.TimeOut, "no answer"), "is that the --listen-port of a target? doctor"},
		{status.Errorf(status.ConnectionReset, "reset"), "and not its port for RDMA"},
		{fmt.Errorf("receive: %w", io.EOF), "and not its port for RDMA"},
		{fmt.Errorf("receive: %w", syscall.ECONNRESET), "and not its port for RDMA"},
		{&controlmsg.Error{Code: status.ConnectionReset, Text: "bye"}, ""},
		{status.Errorf(status.Authentication, "no TLS"), ""},
	} {
		err := suspectPort(c.err)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "--listen-port") != (c.want != "") {
			t.Errorf("%v became %v", c.err, err)
		}
	}
}
