// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"net/http"

	"github.com/zc-relay/zc-relay/cmd/internal/audit"
)

// The operations of the audit log, as the commands call them.
const (
	operationDrain        = "drain"
	operationResume       = "resume"
	operationLogLevel     = "log_level"
	operationEndSession   = "end_session"
	operationStartTrace   = "start_trace"
	operationStopTrace    = "stop_trace"
	operationAddVolume    = "add_volume"
	operationResizeVolume = "resize_volume"
	operationRemoveVolume = "remove_volume"
	operationPreempt      = "preempt_holder"

	operationAddChannel    = "add_channel"
	operationRemoveChannel = "remove_channel"
	operationMoveChannel   = "move_channel"
	operationLimitChannel  = "limit_channel"
)

// OperationReload is the operation of a reload, by a request or by a signal.
const OperationReload = "reload"

// DaemonObject is the object of a change that concerns the daemon as a whole.
const DaemonObject = "daemon"

// change is what a handler says about the change that it was asked for.
type change struct {
	object, detail string
	err            error
}

// audited returns a handler that changes the daemon: the audit log says who has asked for it, and
// how it ended.
func (a *Admin) audited(operation string,
	handle func(http.ResponseWriter, *http.Request, *change)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := change{object: DaemonObject}
		handle(w, r, &c)
		a.audit.Record(audit.Entry{Operation: operation, Object: c.object, Detail: c.detail,
			By: requesterOf(r), Err: c.err})
	})
}

// requesterKey is the key in a request's context of who has sent it.
type requesterKey struct{}

// requesterOf returns who has sent a request.
func requesterOf(r *http.Request) audit.Requester {
	return r.Context().Value(requesterKey{}).(audit.Requester)
}
