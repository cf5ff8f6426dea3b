// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/docs"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// listener is a listener for operators.
type listener interface {
	Shutdown(ctx context.Context) error
}

// listen starts the configured listeners for operators. Even with an error, it returns the
// listeners it has started.
func listen(c config.Operations, env *Environment) ([]listener, error) {
	var listeners []listener
	if c.Listen != "" {
		web, err := env.loadWeb(c.WebConfigFile)
		if err != nil {
			return listeners, fmt.Errorf("operations.web_config_file (--web-config-file): %w", err)
		}
		server, err := adminserver.Listen(adminserver.ServerConfig{Address: c.Listen,
			Status: env.status.document, Web: web, Hosts: c.AllowedHosts, Log: env.Log})
		if err != nil {
			return listeners, fmt.Errorf("operations.listen (--metrics-listen): %w", err)
		}
		env.server = server
		listeners = append(listeners, server)
		err = env.Register(metrics.NewDaemonCollector(env.lifecycle.reloader))
		if err == nil {
			err = registerDevices(env, rdmadevice.SystemRoot)
		}
		if err != nil {
			return listeners, err
		}
		env.Log.Info("serving metrics and health", zap.Stringer("address", server.Address()))
	}
	if c.Admin != "" {
		web, err := env.loadWeb(c.AdminWebConfigFile)
		if err != nil {
			return listeners, fmt.Errorf(
				"operations.admin_web_config_file (--admin-web-config-file): %w", err)
		}
		admin, err := adminserver.ListenAdmin(adminserver.AdminConfig{
			Address: c.Admin, TokenFile: c.AdminTokenFile, Web: web, Hosts: c.AllowedHosts,
			Status: env.status.document, Level: env.LogLevel, Log: env.Log,
			Audit: env.lifecycle.reloader.audit, OpenAPI: openAPIOf(env.status.program),
		})
		if err != nil {
			return listeners, fmt.Errorf("operations.admin (--admin-listen): %w", err)
		}
		admin.HandleReload(env.lifecycle.reloader.request)
		env.admin = admin
		if c.AdminTokenFile != "" {
			env.OnReload(func() (func() error, error) {
				return env.noteCertificates, admin.ReloadToken()
			})
		}
		listeners = append(listeners, admin)
		env.Log.Info("serving administration", zap.Stringer("address", admin.Address()))
	}
	return listeners, nil
}

// loadWeb reads a web configuration file, and reads it again at each reload. Without a file, it
// returns nil.
func (e *Environment) loadWeb(path string) (*webconfig.File, error) {
	if path == "" {
		return nil, nil
	}
	web, err := webconfig.Load(path, e.Log)
	if err != nil {
		return nil, err
	}
	e.OnReload(func() (func() error, error) { return e.noteCertificates, web.Reload() })
	return web, nil
}

// noteCertificates records that a reload has read what secures a listener.
func (e *Environment) noteCertificates() error {
	e.lifecycle.reloader.noteCertificates()
	return nil
}

// SetDrainer lets administrators drain the daemon.
func (e *Environment) SetDrainer(d adminserver.Drainer) {
	if e.admin != nil {
		e.admin.HandleDrain(d)
	}
}

// SetSessions lets administrators list and end sessions.
func (e *Environment) SetSessions(k adminserver.SessionKeeper) {
	if e.admin != nil {
		e.admin.HandleSessions(k)
	}
}

// SetVolumes lets administrators list and change the volumes.
func (e *Environment) SetVolumes(k adminserver.VolumeKeeper) {
	if e.admin != nil {
		e.admin.HandleVolumes(k)
	}
}

// SetChannels lets administrators list and change the channels.
func (e *Environment) SetChannels(k adminserver.ChannelKeeper) {
	if e.admin != nil {
		e.admin.HandleChannels(k)
	}
}

// openAPIOf returns the description of a daemon's admin listener.
func openAPIOf(program string) []byte {
	if program == "target" {
		return docs.OpenAPIOfTarget
	}
	return docs.OpenAPIOfRelay
}

// SetTrace lets administrators trace IOs. next is what the daemon passes them on to.
func (e *Environment) SetTrace(program, next string) {
	if e.admin != nil {
		e.admin.HandleTrace(trace.Program{Name: program, Process: os.Getpid(), Next: next},
			e.Tracer)
	}
}

// registerDevices adds the metrics of the machine's RDMA devices, if there is a sysfs. A container
// may have none, and metrics are no reason not to serve.
func registerDevices(env *Environment, root string) error {
	tree, err := rdmadevice.Open(root)
	if err != nil {
		env.Log.Warn("no metrics of RDMA devices", zap.Error(err))
		return nil
	}
	return env.Register(metrics.NewDeviceCollector(tree, env.Log))
}

// listenerEndTimeout bounds the shutdown of the listeners for operators.
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

// statusSource creates the status document of the daemon at each request.
type statusSource struct {
	program  string
	security adminserver.Security
	started  time.Time
	unready  atomic.Pointer[error]
	reload   *reloader
	// describe adds what the daemon serves; nil until it serves.
	describe atomic.Pointer[func(*adminserver.Document)]
	faults   *fault.Injector // nil without rules
}

var errStarting = errors.New("starting")

func newStatusSource(
	program string, security adminserver.Security, reload *reloader, faults *fault.Injector,
) *statusSource {
	s := &statusSource{program: program, security: security, started: time.Now(), reload: reload,
		faults: faults}
	s.setReady(errStarting)
	return s
}

func (s *statusSource) setReady(reason error) { s.unready.Store(&reason) }

// document returns the status (adminserver.Status).
func (s *statusSource) document() any {
	d := &adminserver.Document{
		Schema: adminserver.Schema, Program: s.program, Version: buildinfo.Version(),
		PID:     os.Getpid(),
		Started: s.started.UTC(), Now: time.Now().UTC(), Workers: []datapath.WorkerStatus{},
		Faults: adminserver.Faults(s.faults), Security: &s.security,
	}
	if reason := *s.unready.Load(); reason != nil {
		d.Reason = reason.Error()
	}
	d.Ready = d.Reason == ""
	d.Reload, d.RestartPending = s.reload.state(), s.reload.restartPending()
	if describe := s.describe.Load(); describe != nil {
		(*describe)(d)
	}
	return d
}

// SetStatus registers describe, which adds what the daemon serves to its status. Several goroutines
// call it concurrently.
func (e *Environment) SetStatus(describe func(*adminserver.Document)) {
	e.status.describe.Store(&describe)
}
