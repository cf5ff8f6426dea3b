// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Rejections remembers which peers were not given which volumes, and why, over all conversations of
// a Responder's side. Peers ask again every few seconds until they get the volume, so only a new
// reason is worth a warning. The zero value is ready to use, by several conversations at a time.
type Rejections struct {
	mu      sync.Mutex // guards what follows
	reasons map[rejectionKey]string
	order   []rejectionKey // of reasons, the one that was added first at the front
}

// rejectionKey holds the host of a peer, whose port differs with each connection.
type rejectionKey struct{ host, volume string }

// maxRejections bounds what peers can make Rejections remember.
const maxRejections = 1024

// isNew notes that a peer was not given a volume, and reports whether that is for another reason
// than before.
func (r *Rejections) isNew(key rejectionKey, reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	former, known := r.reasons[key]
	if known && former == reason {
		return false
	}
	if !known {
		if len(r.order) == maxRejections {
			delete(r.reasons, r.order[0])
			r.order = slices.Delete(r.order, 0, 1)
		}
		r.order = append(r.order, key)
	}
	if r.reasons == nil {
		r.reasons = make(map[rejectionKey]string)
	}
	r.reasons[key] = reason
	return true
}

// forget notes that a peer was given a volume: the next rejection is new.
func (r *Rejections) forget(key rejectionKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.reasons[key]; !known {
		return
	}
	delete(r.reasons, key)
	i := slices.Index(r.order, key)
	r.order = slices.Delete(r.order, i, i+1)
}

// logOutcome logs that a request has failed, if that is news. A stand-by that waits for its turn
// and a request to try again later are no failures.
func (s *Responder) logOutcome(request Message, err error) {
	level := zap.WarnLevel
	if open, ok := request.(*OpenVolume); ok && s.link.config.Rejections != nil {
		host := s.link.transport.RemoteName()
		if without, _, err := net.SplitHostPort(host); err == nil {
			host = without
		}
		key := rejectionKey{host, open.Volume}
		if err == nil {
			s.link.config.Rejections.forget(key)
		} else if !s.link.config.Rejections.isNew(key, report(err, PhaseOpenVolume).Text) {
			level = zap.DebugLevel
		}
	}
	if err == nil {
		return
	}
	if errors.Is(err, status.NoLock) || RetryAfter(err) > 0 {
		level = zapcore.DebugLevel
	}
	s.link.config.Logger.Log(level, "request failed", zap.Stringer("request", request.Kind()),
		zap.Error(err))
}

// rejection is a request that this side has failed, as the peer was told.
type rejection struct {
	request Kind
	reason  *Error
}

// leftAfter is the end of a conversation by a peer that gives as its reason what this side has told
// it.
type leftAfter struct {
	rejection
	farewell *Error
}

// Error names the side that is the origin of the reason.
func (l *leftAfter) Error() string {
	return fmt.Sprintf("left after its %v had failed here: %s [%v]", l.request, l.reason.Text,
		l.reason.Code)
}

// Unwrap returns the peer's farewell.
func (l *leftAfter) Unwrap() error { return l.farewell }

// comparedText is how much of a reason a farewell has to repeat: peers put their own words before
// it, and cut the end off.
const comparedText = 128

// isRepeatedBy reports whether a farewell gives this rejection as its reason.
func (r *rejection) isRepeatedBy(farewell *Error) bool {
	if r.reason == nil || r.reason.Text == "" {
		return false
	}
	text := r.reason.Text
	return strings.Contains(farewell.Text, text[:min(len(text), comparedText)])
}

func (s *Responder) attribute(farewell *Error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rejected.isRepeatedBy(farewell) {
		return &leftAfter{s.rejected, farewell}
	}
	return farewell
}

// HasLeftAfterRejection reports whether a conversation has ended with err because the peer left
// when this side had failed its latest request, and gave that as its reason.
func HasLeftAfterRejection(err error) bool {
	_, ok := errors.AsType[*leftAfter](err)
	return ok
}
