package service

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/statusreport"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

// statusSource makes the status of the daemon whenever it is asked for.
type statusSource struct {
	program string
	started time.Time
	unready atomic.Pointer[error]
	// describe adds what the daemon serves; nil before there is anything.
	describe atomic.Pointer[func(*statusreport.Document)]
}

var errStarting = errors.New("starting")

func newStatusSource(program string) *statusSource {
	s := &statusSource{program: program, started: time.Now()}
	s.setReady(errStarting)
	return s
}

func (s *statusSource) setReady(reason error) { s.unready.Store(&reason) }

// document implements ops.Status.
func (s *statusSource) document() any {
	d := &statusreport.Document{
		Schema: statusreport.Schema, Program: s.program, Version: buildinfo.Version(), PID: os.Getpid(),
		Started: s.started.UTC(), Now: time.Now().UTC(), Workers: []statusreport.Worker{},
	}
	if reason := *s.unready.Load(); reason != nil {
		d.Reason = reason.Error()
	}
	d.Ready = d.Reason == ""
	if describe := s.describe.Load(); describe != nil {
		(*describe)(d)
	}
	return d
}

// SetStatus has describe add what the daemon serves to its status. It is
// called by several goroutines at once.
func (e *Environment) SetStatus(describe func(*statusreport.Document)) {
	e.status.describe.Store(&describe)
}
