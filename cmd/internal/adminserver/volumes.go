// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// VolumeKeeper is a daemon whose volumes administrators change. Its methods may be called
// concurrently. A change that has not ended when its context does goes on, and the method fails
// with status.InProgress.
type VolumeKeeper interface {
	// AdminVolumes lists the volumes by name.
	AdminVolumes() []admin.Volume
	AddVolume(ctx context.Context, v admin.NewVolume) (admin.Volume, error)
	// RemoveVolume drains the sessions of the volume unless force is set, and ends them.
	RemoveVolume(ctx context.Context, name string, force bool) error
	ResizeVolume(ctx context.Context, name string, to admin.VolumeSize) (admin.Volume, error)
	// PreemptHolder ends the sessions of a holder of the volume.
	PreemptHolder(ctx context.Context, name, holder string) error
}

// HandleVolumes serves admin.VolumesPath.
func (a *Admin) HandleVolumes(k VolumeKeeper) {
	a.handle("listVolumes", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		list := admin.VolumeList{Schema: admin.VolumesSchema, Volumes: k.AdminVolumes()}
		if list.Volumes == nil {
			list.Volumes = []admin.Volume{}
		}
		reply(w, list)
	}))
	a.handleChange("addVolume", operationAddVolume, volumeObject, func(ctx context.Context,
		r *http.Request, c *change) (any, error) {
		var v admin.NewVolume
		if err := readDocument(r, &v); err != nil {
			return nil, err
		}
		c.object, c.detail = volumeObject(v.Name), volume.Redacted(v.Backend)
		return k.AddVolume(ctx, v)
	})
	a.handleChange("resizeVolume", operationResizeVolume, volumeObject,
		func(ctx context.Context, r *http.Request, c *change) (any, error) {
			var to admin.VolumeSize
			if err := readDocument(r, &to); err != nil {
				return nil, err
			}
			c.detail = sizeDetail(to)
			return k.ResizeVolume(ctx, r.PathValue("name"), to)
		})
	a.handleChange("removeVolume", operationRemoveVolume, volumeObject, func(
		ctx context.Context, r *http.Request, c *change) (any, error) {
		force, err := forceOf(r, c)
		if err != nil {
			return nil, err
		}
		return nil, k.RemoveVolume(ctx, r.PathValue("name"), force)
	})
	a.handleChange("preemptHolder", operationPreempt, volumeObject,
		func(ctx context.Context, r *http.Request, c *change) (any, error) {
			c.detail = "holder " + r.PathValue("holder")
			return nil, k.PreemptHolder(ctx, r.PathValue("name"), r.PathValue("holder"))
		})
}

// volumeObject returns the object of a change of a volume.
func volumeObject(name string) string { return strings.TrimSpace("volume " + name) }

// sizeDetail describes a change of a volume's size, for the audit log.
func sizeDetail(to admin.VolumeSize) string {
	switch {
	case to.Size == 0:
		return "to the size of what it is on"
	case to.Shrink:
		return fmt.Sprintf("to %d bytes, may shrink", to.Size)
	}
	return fmt.Sprintf("to %d bytes", to.Size)
}

// maxChangeTime bounds how long a client waits for a change, which may take longer than other
// requests.
const maxChangeTime = 15 * time.Minute

// forceOf returns whether a request does not wait for others, and notes it.
func forceOf(r *http.Request, c *change) (force bool, err error) {
	force, err = strconv.ParseBool(parameter(r, admin.ForceParameter, "false"))
	if err != nil {
		return false, status.Errorf(status.InvalidValue, "%s is neither true nor false",
			admin.ForceParameter)
	}
	if force {
		c.detail = strings.TrimSpace(c.detail + " by force")
	}
	return force, nil
}

// handleChange serves a route whose handler may take as long as the client says that it waits.
// object returns what a name in the path means. The handler returns the document of the reply, or
// nil.
func (a *Admin) handleChange(route, operation string, object func(name string) string,
	carryOut func(context.Context, *http.Request, *change) (any, error)) {
	a.handle(route, a.audited(operation,
		func(w http.ResponseWriter, r *http.Request, c *change) {
			c.object = object(r.PathValue("name"))
			wait, err := waitOf(r)
			if err != nil {
				c.err = err
				replyError(w, err)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), wait)
			defer cancel()
			extendDeadlines(w, wait+requestTimeout)
			document, err := carryOut(ctx, r, c)
			switch {
			case err != nil:
				c.err = err
				replyError(w, err)
			case document == nil:
				w.WriteHeader(http.StatusNoContent)
			default:
				reply(w, document)
			}
		}))
}

// extendDeadlines lets a request take longer than requestTimeout. A connection that does not
// support that keeps its deadlines.
func extendDeadlines(w http.ResponseWriter, by time.Duration) {
	controller, deadline := http.NewResponseController(w), time.Now().Add(by)
	_ = controller.SetReadDeadline(deadline)
	_ = controller.SetWriteDeadline(deadline)
}

// waitOf returns how long the client of a request waits.
func waitOf(r *http.Request) (time.Duration, error) {
	const most = uint64(maxChangeTime / time.Millisecond)
	text := parameter(r, admin.WaitParameter,
		strconv.FormatInt((requestTimeout/2).Milliseconds(), 10))
	waitMs, err := strconv.ParseUint(text, 10, 64)
	if err != nil || waitMs > most {
		return 0, status.Errorf(status.InvalidValue, "%s=%s is not a number up to %d",
			admin.WaitParameter, printable.Quote(text, maxEcho), most)
	}
	return time.Duration(waitMs) * time.Millisecond, nil
}

func parameter(r *http.Request, name, otherwise string) string {
	if values := r.URL.Query(); values.Has(name) {
		return values.Get(name)
	}
	return otherwise
}

// readDocument reads the JSON document of a request, whose fields must all be known.
func readDocument(r *http.Request, document any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(document); err != nil {
		return status.Errorf(status.InvalidValue, "read the request: %w", err)
	}
	return nil
}

// replyError sends the text of an error, and its code in admin.CodeHeader.
func replyError(w http.ResponseWriter, err error) {
	code := status.CodeOf(err)
	w.Header().Set(admin.CodeHeader, code.String())
	http.Error(w, fmt.Sprint(err), httpStatus(code))
}

// httpStatus returns the HTTP status of a reply with an error.
func httpStatus(code status.Code) int {
	switch code {
	case status.InvalidValue:
		return http.StatusBadRequest
	case status.NotFound:
		return http.StatusGone
	case status.AlreadyExist, status.InUse, status.BadState:
		return http.StatusConflict
	case status.InProgress, status.TimeOut:
		return http.StatusGatewayTimeout
	case status.NotPermitted:
		return http.StatusForbidden
	case status.NotSupported:
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}
