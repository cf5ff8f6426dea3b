package target

import (
	"context"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestADrainedSessionDoesNotStart(t *testing.T) {
	s := &session{pendingConnection: &pendingConnection{ctx: context.Background()}}
	s.drain(context.Background())
	if err := s.StartStorage(context.Background()); !errors.Is(err, status.Shutdown) {
		t.Errorf("start storage: %v", err)
	}
}
