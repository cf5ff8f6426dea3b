package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/ops"
	"github.com/zc-relay/zc-relay/internal/rdmadevice"
)

// listener is one of the operations listeners.
type listener interface {
	Shutdown(ctx context.Context) error
}

// listen starts the operations listeners that are configured, and returns also
// after an error those that were started.
func listen(c config.Operations, env *Environment) ([]listener, error) {
	var listeners []listener
	if c.Listen != "" {
		server, err := ops.Listen(c.Listen, env.status.document, env.Log)
		if err != nil {
			return listeners, fmt.Errorf("operations.listen (--metrics-listen): %w", err)
		}
		env.ops = server
		listeners = append(listeners, server)
		if err := registerDevices(env); err != nil {
			return listeners, err
		}
		env.Log.Info("serving metrics and health", zap.Stringer("address", server.Address()))
	}
	if c.Admin != "" {
		admin, err := ops.ListenAdmin(ops.AdminConfig{
			Address: c.Admin, Status: env.status.document, Level: env.LogLevel, Log: env.Log,
		})
		if err != nil {
			return listeners, fmt.Errorf("operations.admin (--admin-listen): %w", err)
		}
		env.admin = admin
		listeners = append(listeners, admin)
		env.Log.Info("serving administration", zap.Stringer("address", admin.Address()))
	}
	return listeners, nil
}

// SetDrainer lets whoever administers the daemon drain it.
func (e *Environment) SetDrainer(d ops.Drainer) {
	if e.admin != nil {
		e.admin.HandleDrain(d)
	}
}

// registerDevices adds the metrics of the machine's RDMA devices.
func registerDevices(env *Environment) error {
	tree, err := rdmadevice.Open(rdmadevice.SystemRoot)
	if err != nil {
		return err
	}
	return env.Register(metrics.NewDeviceCollector(tree, env.Log))
}

// listenerEndTimeout bounds the end of the operations listeners.
const listenerEndTimeout = 2 * time.Second

func endListeners(listeners []listener) error {
	ctx, cancel := context.WithTimeout(context.Background(), listenerEndTimeout)
	defer cancel()
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Shutdown(ctx))
	}
	return errors.Join(errs...)
}
