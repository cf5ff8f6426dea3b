package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

// maxHandshakes bounds the TLS handshakes under way. Nothing is known yet of
// whoever is behind them, so they wait outside of the places for sessions.
const maxHandshakes = 256

// acceptRetryPause is the pause after a failed accept: a process that is out
// of descriptors fails at once, again and again.
const acceptRetryPause = 50 * time.Millisecond

// acceptControl takes control connections until ctx ends. It returns when all
// of them are sessions, or closed.
func (t *Target) acceptControl(ctx context.Context) error {
	var admitting sync.WaitGroup
	defer admitting.Wait()
	places := make(chan struct{}, maxHandshakes)
	for {
		connection, err := t.listener.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = connection.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept control connections: %w", err)
		}
		if err != nil {
			t.log.Warn("accept control connection", zap.Error(err))
			time.Sleep(acceptRetryPause)
			continue
		}
		if t.config.TLS == nil {
			t.startSession(connection, controlmsg.NewTCPTransport(connection, controlmsg.TCPConfig{}))
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			_ = connection.Close()
			return nil
		}
		admitting.Go(func() {
			defer func() { <-places }()
			t.admit(ctx, connection)
		})
	}
}

// admit starts a session if the relay can prove who it is.
func (t *Target) admit(ctx context.Context, connection *net.TCPConn) {
	ctx, cancel := context.WithTimeout(ctx, t.config.ControlTimeout)
	defer cancel()
	transport, err := controlmsg.NewTLSServer(ctx, connection, t.config.TLS.Server(t.config.TLSAllowedNames), controlmsg.TCPConfig{})
	if err != nil {
		t.log.Warn("refused a control connection", zap.Error(err))
		return
	}
	t.startSession(connection, transport)
}
