// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/internal/recurrence"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Rejections remembers which peers were rejected, and why, over all conversations of a side. Peers
// that are configured wrongly try again every few seconds, for ever, so the log has a line about
// the first rejection, and then now and then how many there were. The zero value is ready to use,
// by several conversations at a time.
type Rejections struct {
	mu    sync.Mutex // guards what follows
	known map[rejectionKey]*knownRejection
	order []rejectionKey // of known, the one that was added first at the front
}

// rejectionKey holds the host of a peer, whose port differs with each connection, and what the peer
// was rejected at: a step of the conversation, or a volume.
type rejectionKey struct{ host, at string }

// knownRejection is the latest reason why a peer was rejected.
type knownRejection struct {
	reason string
	recurrence.Recurrence
}

// maxRejections bounds what peers can make Rejections remember.
const maxRejections = 1024

// Log logs, with message and fields, why a peer was rejected, if the log needs that: at the given
// level at first and now and then, with the number of attempts, and otherwise at level debug.
// remote is the name of the peer, as Transport.RemoteName returns it, and at the step of the
// conversation.
func (r *Rejections) Log(log *zap.Logger, level zapcore.Level, message, remote, at string,
	reason error, fields ...zap.Field) {
	isDue, again := r.occur(rejectionKey{hostOf(remote), at},
		strings.ReplaceAll(reason.Error(), remote, hostOf(remote)))
	if !isDue {
		level = zapcore.DebugLevel
	}
	log.Log(level, message, append(append(fields, zap.Error(reason)), again...)...)
}

// hostOf returns the name of a peer without the port, and without what follows that.
func hostOf(remote string) string {
	address, _, _ := strings.Cut(remote, " ")
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return remote
}

// occur notes that a peer was rejected, and reports whether a line about it is due, and what the
// line says about repetitions.
func (r *Rejections) occur(key rejectionKey, reason string) (isDue bool, again []zap.Field) {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.known[key]
	if current == nil {
		if len(r.order) == maxRejections {
			delete(r.known, r.order[0])
			r.order = slices.Delete(r.order, 0, 1)
		}
		r.order = append(r.order, key)
		if r.known == nil {
			r.known = make(map[rejectionKey]*knownRejection)
		}
		current = &knownRejection{reason: reason}
		r.known[key] = current
	}
	if current.reason != reason {
		*current = knownRejection{reason: reason}
	}
	if !current.Occur(time.Now()) {
		return false, nil
	}
	return true, current.Fields()
}

// forget notes that a peer was given a volume: the next rejection is new.
func (r *Rejections) forget(key rejectionKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.known[key]; !known {
		return
	}
	delete(r.known, key)
	i := slices.Index(r.order, key)
	r.order = slices.Delete(r.order, i, i+1)
}

// logOutcome logs that a request has failed, if that is news. A stand-by that waits for its turn
// and a request to try again later are no failures.
func (s *Responder) logOutcome(request Message, err error) {
	isDue, again := true, []zap.Field(nil)
	if open, ok := request.(*OpenVolume); ok && s.link.config.Rejections != nil {
		key := rejectionKey{hostOf(s.link.transport.RemoteName()), "volume " + open.Volume}
		if err == nil {
			s.link.config.Rejections.forget(key)
		} else {
			isDue, again = s.link.config.Rejections.occur(key, report(err, PhaseOpenVolume).Text)
		}
	}
	if err == nil {
		return
	}
	level := zapcore.WarnLevel
	if !isDue || errors.Is(err, status.NoLock) || RetryAfter(err) > 0 {
		level = zapcore.DebugLevel
	}
	s.link.config.Logger.Log(level, "request failed", append([]zap.Field{
		zap.Stringer("request", request.Kind()), zap.Error(err)}, again...)...)
}

// logFailure logs that the link has failed. A peer that is configured wrongly fails again and
// again before it has a volume.
func (l *link) logFailure(phase Phase, reason error) {
	const message = "control connection failed"
	peer := l.transport.RemoteName()
	fields := []zap.Field{zap.String("peer", peer), zap.Stringer("phase", phase)}
	if l.config.Rejections == nil || phase > PhaseOpenVolume {
		l.config.Logger.Warn(message, append(fields, zap.Error(reason))...)
		return
	}
	l.config.Rejections.Log(l.config.Logger, zapcore.WarnLevel, message, peer, phase.String(),
		reason, fields...)
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
	return fmt.Sprintf("left after its %v had failed here: %s", l.request,
		status.WithCode(l.reason.Text, l.reason.Code))
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
