package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// deadRelay is a conversation that has ended without a reason.
type deadRelay struct{ conversation }

func (deadRelay) Err() error { return nil }

// What a volume does in the background ends with it: nobody uses its queues any more.
func TestAClosedVolumeForgetsNoChanges(t *testing.T) {
	for name, closes := range map[string]bool{"open": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				region, err := memory.Alloc("data", 4096)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = region.Close() }()
				loan, err := region.Lend()
				if err != nil {
					t.Fatal(err)
				}
				if err := loan.Region().Close(); err != nil { // the relay has died
					t.Fatal(err)
				}
				v := &Volume{config: Config{Logger: zap.NewNop()}}
				v.ctx, v.cancel = context.WithCancel(t.Context())
				defer v.cancel()
				ended := &session{volume: v, requester: deadRelay{}, leases: time.Second,
					loan: loan}
				v.settle(ended)
				if closes {
					v.stopBackground()
				}
				time.Sleep(time.Minute)
				if forgotten := ended.evidence.Load() == released; forgotten == closes {
					t.Errorf("changes are forgotten: %t", forgotten)
				}
			})
		})
	}
}
