// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// A device may take a send or a receive and report later that it has failed. The session then ends
// at once: no IO timeout is set. Both sides sleep whenever they have nothing to do.
func TestALateErrorOfTheDeviceEndsTheSessionAtOnce(t *testing.T) {
	chaintest.Parallel(t)
	const depth = 4
	for _, c := range []struct{ name, rule string }{
		{"relay sends", "comch:producer.complete:while=trouble:error=IO_FAILED"},
		{"relay receives", "comch:consumer.post:while=trouble:error=IO_FAILED"},
		{"client sends", "comch:producer.complete:while=trouble:error=IO_FAILED"},
		{"client receives", "comch:consumer.post:while=trouble:error=IO_FAILED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			injector, _ := faulttest.New(t, c.rule)
			wrapped := func(p comch.Provider) comch.Provider {
				return hook.Wrap(p, hook.Config{Injector: injector})
			}
			onRelay := c.name[:5] == "relay"
			o := options{
				Relay: func(config *relay.Config) {
					config.Policy = progress.Policy{Mode: progress.Event}
				},
				Channel: func(config *relay.ChannelConfig) { config.IOTimeout = retry.Forever() },
			}
			if onRelay {
				o.Comch = wrapped
			}
			chain := chaintest.Start(t, o)
			config := chain.QueueConfig(depth)
			config.IOTimeout = -1
			if !onRelay {
				config.Provider = wrapped(config.Provider)
			}
			v, err := client.Open(chain.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			q := v.Queue(0)
			engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
			if err != nil {
				t.Fatal(err)
			}
			if err := q.Attach(engine); err != nil {
				t.Fatal(err)
			}
			chaintest.SubmitReads(t, q, depth)
			pollAll(t, engine, q, depth,
				func(code status.Code) bool { return code == status.Success })
			injector.TurnOn("trouble")
			chaintest.SubmitReads(t, q, depth)
			// What a device reports as failed, or loses behind that, never completes.
			pollAll(t, engine, q, depth, func(status.Code) bool { return true })
			chain.Await("the end of the volume", func() bool {
				q.Poll(make([]client.Result, 1))
				return v.Err() != nil
			})
			q.Detach(engine)
			late := engine.Stats().LateWakeups
			if err := errors.Join(engine.Close(), v.Close(chain.Context())); err == nil ||
				!errors.Is(v.Err(), status.IOFailed) ||
				!onRelay && !errors.Is(v.Err(), fault.ErrInjected) {
				t.Errorf("the volume ended with %v, and closing it returned %v", v.Err(), err)
			}
			if late != 0 {
				t.Errorf("%d wake-ups came late", late)
			}
			chain.AwaitRelease()
		})
	}
}

// pollAll waits for count results, asleep on the engine.
func pollAll(t *testing.T, engine *progress.Engine, q *client.Queue, count int,
	want func(status.Code) bool) {
	t.Helper()
	results := make([]client.Result, count)
	deadline := time.Now().Add(testkit.Patience)
	for done := 0; done < count; {
		n := q.Poll(results)
		for _, r := range results[:n] {
			if !want(r.Code) {
				t.Errorf("request %d ended with %v", r.Tag, r.Code)
			}
		}
		done += n
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d results arrived", done, count)
		}
		engine.Progress()
		engine.Idle(n)
	}
}
