// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// slowOpener is a handler whose open_volume runs as long as open does. It has no other methods.
type slowOpener struct {
	controlmsg.TargetHandler
	open func(ctx context.Context) error
}

func (h slowOpener) OpenVolume(
	ctx context.Context, _ *controlmsg.OpenVolume,
) (*controlmsg.OpenVolumeReply, error) {
	volume := controlmsgtest.Volume()
	return &volume, h.open(ctx)
}

// servePatiently runs a peer with a handler, and returns the requester that has greeted it.
func servePatiently(
	t *testing.T, asked, asking controlmsg.Role, open func(ctx context.Context) error,
) *controlmsg.Requester {
	t.Helper()
	near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	responder := controlmsg.NewResponder(far, controlmsg.EndpointConfig{Role: asked})
	go func() { _ = responder.Serve(t.Context(), slowOpener{open: open}) }()
	requester := controlmsg.NewRequester(near, controlmsg.EndpointConfig{Role: asking})
	t.Cleanup(func() {
		requester.Close(nil)
		responder.Close(nil)
	})
	if _, err := requester.Greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	return requester
}

// All peers of a chain have the same timeouts. Nevertheless each learns why the next one cannot do
// what it asks for, instead of giving it up.
func TestAReasonArrivesBeforeAnybodyGivesUp(t *testing.T) {
	for name, patience := range map[string]time.Duration{
		"the timeout": time.Hour, "a context with less time": time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				storageIsReady := false
				toTarget := servePatiently(t, controlmsg.RoleTarget, controlmsg.RoleRelay,
					func(ctx context.Context) error {
						if storageIsReady {
							return nil
						}
						<-ctx.Done()
						return status.Errorf(status.Again, "the disk hangs: %w", context.Cause(ctx))
					})
				toRelay := servePatiently(t, controlmsg.RoleRelay, controlmsg.RoleInitiator,
					func(ctx context.Context) error {
						_, err := toTarget.Call(ctx, &controlmsg.OpenVolume{})
						return err
					})
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				begun := time.Now()
				_, err := toRelay.Call(ctx, &controlmsg.OpenVolume{})
				took, most := time.Since(begun), min(patience, controlmsg.DefaultTimeout)
				if !errors.Is(err, status.Again) ||
					!strings.Contains(err.Error(), "the disk hangs") ||
					!strings.Contains(err.Error(), "does not wait longer") {
					t.Errorf("open_volume: %v", err)
				}
				if took < most*3/4 || took >= most {
					t.Errorf("the reason arrives after %v of %v", took, most)
				}
				storageIsReady = true
				if _, err := toRelay.Call(t.Context(), &controlmsg.OpenVolume{}); err != nil {
					t.Errorf("the conversations have not survived: %v", err)
				}
			})
		})
	}
}

// Requesters before this field do not say how long they wait.
func TestARequestWithoutATimeoutHasAllTheTimeItTakes(t *testing.T) {
	raw, transport := controlmsgtest.NewRaw(t)
	responder := controlmsg.NewResponder(transport, asTarget)
	defer responder.Close(nil)
	limited := make(chan bool)
	go func() {
		_ = responder.Serve(t.Context(), slowOpener{open: func(ctx context.Context) error {
			_, limits := ctx.Deadline()
			limited <- limits
			return nil
		}})
	}()
	raw.Send(1, relayHello())
	raw.Receive()
	raw.Send(2, &controlmsg.OpenVolume{})
	if <-limited {
		t.Error("the handler has a limited time")
	}
}
