// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// from is a transport to a peer with an address.
type from struct {
	controlmsg.Transport
	address string
}

func (f from) RemoteName() string { return f.address }

// asker plays relays that ask a target for volumes, and leave with what they have got.
type asker struct {
	t          *testing.T
	rejections controlmsg.Rejections
	ports      int
}

// ask lets a relay on a host ask for a volume, to which the target answers with err. It returns the
// lines of the target's log of the levels from warn on, and why the conversation has ended.
func (a *asker) ask(host, volume string, err error, farewell func(error) error) (lines []string,
	ended error) {
	a.t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	config := asTarget
	config.Rejections, config.Logger = &a.rejections, zap.New(core)
	near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	a.ports++
	s := controlmsg.NewResponder(from{far, fmt.Sprintf("%s:%d", host, 1000+a.ports)}, config)
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(a.t.Context(), targetHandler{&handler{
			handle: func(context.Context, controlmsg.Kind) error { return err },
		}})
	}()
	r := newRequester(a.t, asRelay, near)
	_, failure := r.Call(a.t.Context(), &controlmsg.OpenVolume{Volume: volume})
	if (failure == nil) != (err == nil) {
		a.t.Errorf("%v became %v", err, failure)
	}
	if failure != nil {
		failure = farewell(failure)
	}
	r.Close(failure)
	ended = <-served
	s.Close(nil)
	for _, line := range logs.All() {
		lines = append(lines, line.Message)
	}
	return lines, ended
}

// passOn is what relays say when they leave.
func passOn(err error) error { return fmt.Errorf("open volume of target 10.0.0.5:7470: %w", err) }

func TestARejectionIsLoggedOnceForEachPeerAndReason(t *testing.T) {
	a := asker{t: t}
	gone := status.Errorf(status.IOFailed, "there is no file")
	locked := status.Errorf(status.IOFailed, "the file is locked")
	for i, c := range []struct {
		host, volume string
		err          error
		isLogged     bool
	}{
		{"10.0.0.1", "a", gone, true},
		{"10.0.0.1", "a", gone, false},
		{"10.0.0.2", "a", gone, true},
		{"10.0.0.1", "b", gone, true},
		{"10.0.0.1", "a", gone, false},
		{"10.0.0.1", "a", locked, true},
		{"10.0.0.1", "a", locked, false},
		{"10.0.0.1", "a", nil, false},
		{"10.0.0.1", "a", locked, true}, // again
		{"[fd00::1]", "a", gone, true},
		{"[fd00::1]", "a", gone, false},
		// Neither is a failure.
		{"10.0.0.3", "a", status.Errorf(status.NoLock, "this target is a stand-by"), false},
		{"10.0.0.3", "a", controlmsg.Postpone(time.Second, "too many"), false},
	} {
		lines, _ := a.ask(c.host, c.volume, c.err, passOn)
		if (len(lines) == 1) != c.isLogged || len(lines) > 1 {
			t.Errorf("%d: %s asks for %s, which fails with %v: the log has %q", i, c.host, c.volume,
				c.err, lines)
		}
	}
}

// A peer cannot make the target remember without bound.
func TestOldRejectionsAreForgotten(t *testing.T) {
	a := asker{t: t}
	gone := status.Errorf(status.NotFound, "no such volume")
	isLogged := func(volume string) bool {
		lines, _ := a.ask("10.0.0.1", volume, gone, passOn)
		return len(lines) > 0
	}
	isLogged("first")
	for i := range 1024 {
		if !isLogged(fmt.Sprint(i)) {
			t.Fatalf("rejection %d is not logged", i)
		}
	}
	if isLogged("1023") {
		t.Error("the latest rejection is logged again")
	}
	if !isLogged("first") {
		t.Error("the first of 1025 rejections is still known")
	}
}

func TestAFarewellThatRepeatsARejectionHasItsOriginHere(t *testing.T) {
	a := asker{t: t}
	long := strings.Repeat("the file is gone and ", 60)
	for name, c := range map[string]struct {
		err      error
		farewell func(error) error
		want     string
		repeats  bool
	}{
		"passed on": {status.Errorf(status.IOFailed, "no file"), passOn,
			"left after its open_volume had failed here: no file [IO_FAILED]", true},
		"cut off": {status.Errorf(status.IOFailed, "%s", long), passOn,
			"left after its open_volume had failed here: the file is gone", true},
		"something else": {status.Errorf(status.IOFailed, "no file"),
			func(error) error { return status.Errorf(status.Shutdown, "maintenance") },
			"the other side reports at step hello: maintenance [SHUTDOWN]", false},
	} {
		_, ended := a.ask("10.0.0.1", "a", c.err, c.farewell)
		if ended == nil || !strings.HasPrefix(ended.Error(), c.want) ||
			controlmsg.HasLeftAfterRejection(fmt.Errorf("relay: %w", ended)) != c.repeats {
			t.Errorf("%s: %v, want %q", name, ended, c.want)
		}
		if _, isFarewell := errors.AsType[*controlmsg.Error](ended); !isFarewell {
			t.Errorf("%s: %v is no farewell", name, ended)
		}
	}
}

// A peer that is configured wrongly connects again and again, each time from another port.
func TestAPeerThatKeepsFailingIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		var r controlmsg.Rejections
		for port := range 40 {
			name := fmt.Sprintf("10.0.0.1:%d (\"relay\")", 1000+port)
			r.Log(zap.New(core), zap.WarnLevel, "rejected", name, "connection",
				status.Errorf(status.Authentication, "handshake with %s: no TLS", name))
			time.Sleep(time.Second)
		}
		if lines := logs.All(); len(lines) != 3 || lines[0].ContextMap()["attempts"] != nil ||
			lines[2].ContextMap()["attempts"] != int64(31) ||
			lines[2].ContextMap()["for"] != 30*time.Second {
			t.Errorf("the log has %v", lines)
		}
		for i, c := range []struct{ name, at, text string }{
			{"10.0.0.2:1", "connection", "handshake with 10.0.0.2:1: no TLS"},
			{"10.0.0.1:1", "hello", "handshake with 10.0.0.1:1: no TLS"},
			{"10.0.0.1:2", "hello", "handshake with 10.0.0.1:2: another version"},
		} {
			r.Log(zap.New(core), zap.WarnLevel, "rejected", c.name, c.at, errors.New(c.text))
			if logs.Len() != 4+i {
				t.Errorf("%+v is not logged", c)
			}
		}
	})
}

// failing is a transport to a peer whose first message is of no use.
type failing struct{ controlmsg.Transport }

func (failing) Receive(context.Context) ([]byte, error) {
	return nil, status.Errorf(status.Authentication, "the peer speaks TLS")
}

func TestAConversationThatFailsBeforeItHasAVolumeIsARejection(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	config := asTarget
	config.Rejections, config.Logger = &controlmsg.Rejections{}, zap.New(core)
	for port := range 3 {
		_, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
		s := controlmsg.NewResponder(from{failing{far}, fmt.Sprintf("10.0.0.1:%d", 1000+port)},
			config)
		if err := s.Serve(t.Context(), targetHandler{&handler{}}); err == nil {
			t.Error("a peer that speaks TLS was served")
		}
		s.Close(nil)
	}
	if lines := logs.All(); len(lines) != 1 || lines[0].Message != "control connection failed" {
		t.Errorf("the log has %v", lines)
	}
}
