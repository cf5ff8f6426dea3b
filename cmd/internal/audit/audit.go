// SPDX-License-Identifier: Apache-2.0

// Package audit logs who has changed a running daemon, and how that ended: a line for each change,
// whatever the log level.
package audit

import (
	"os"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The ways in which somebody can ask for a change.
const (
	viaUnix   = "unix"   // the admin listener, on a Unix socket
	viaTCP    = "tcp"    // the admin listener, on a loopback address
	viaSignal = "signal" // which does not tell its sender
)

// Requester is who has asked for a change.
type Requester struct {
	via    string
	peer   string // address of the process, for viaTCP
	signal os.Signal
	caller caller // for viaUnix
}

// Signal is whoever has sent a signal.
func Signal(s os.Signal) Requester { return Requester{via: viaSignal, signal: s} }

// Entry is a change, or an attempt to make one.
type Entry struct {
	Operation string
	// Object is what was to be changed, and Detail how; Detail may be empty.
	Object, Detail string
	By             Requester
	Err            error // nil for success
}

// Log is the log of changes.
type Log struct {
	log   *zap.Logger
	users users
}

// New returns a log that writes where another one does.
func New(log *zap.Logger) *Log { return &Log{log: logging.Always(log.Named("audit"))} }

// maxText bounds what a requester makes the log repeat, in bytes.
const maxText = 256

// Record logs a change.
func (l *Log) Record(e Entry) {
	fields := []zap.Field{zap.String("operation", e.Operation),
		zap.String("object", printable.Line(e.Object, maxText))}
	if e.Detail != "" {
		fields = append(fields, zap.String("detail", printable.Line(e.Detail, maxText)))
	}
	fields = append(fields, zap.String("via", e.By.via))
	fields = append(fields, l.describe(&e.By)...)
	if e.Err != nil {
		code := status.CodeOf(e.Err)
		l.log.Warn("administration", append(fields, zap.Stringer("outcome", code),
			zap.Error(printable.Error(e.Err)))...)
		return
	}
	l.log.Info("administration", append(fields, zap.String("outcome", "done"))...)
}

// describe returns the fields of a requester.
func (l *Log) describe(by *Requester) []zap.Field {
	switch by.via {
	case viaSignal:
		return []zap.Field{zap.Stringer("signal", by.signal)}
	case viaTCP:
		return []zap.Field{zap.String("peer", by.peer)}
	}
	if by.caller.err != nil {
		return []zap.Field{zap.NamedError("user_error", by.caller.err)}
	}
	fields := []zap.Field{zap.Uint32("user_id", by.caller.user),
		zap.Int32("pid", by.caller.process)}
	if name := l.users.name(by.caller.user); name != "" {
		fields = append(fields, zap.String("user", name))
	}
	if login, known := by.caller.login, by.caller.hasLogin; known && login != by.caller.user {
		fields = append(fields, zap.Uint32("login_user_id", login))
		if name := l.users.name(login); name != "" {
			fields = append(fields, zap.String("login_user", name))
		}
	}
	return fields
}
