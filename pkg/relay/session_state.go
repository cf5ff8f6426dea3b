// SPDX-License-Identifier: Apache-2.0

package relay

import "sync/atomic"

// sessionState is the stage of a session's life. A request of the client that has begun before the
// session ends may go on afterwards, and then changes nothing. That no new session starts its lanes
// once it is drained (session.draining) is beside the state, as it is for a lane.
type sessionState uint8

const (
	sessionOpening    sessionState = iota // there is no connection to a target yet
	sessionOpen                           // the volume is open at a target
	sessionConfigured                     // the target has accepted the data path
	sessionStarted                        // the lanes forward requests
	sessionStopping                       // the target has been asked to stop
	sessionDestroying                     // the client wants to leave; the target may, too
	sessionEnding                         // nothing new begins, and everything is being released
	sessionUnreleased                     // that has failed, and is tried again
	sessionReleased                       // the client's next session may begin
)

// sessionEvent is what changes the state of a session.
type sessionEvent uint8

const (
	volumeOpened sessionEvent = iota
	dataPathConfigured
	lanesStarted
	targetStops    // it gets the request to stop
	clientDestroys // it has sent the request to destroy everything
	sessionEnds    // for whatever reason
	releaseFails
	releaseSucceeds
)

// sessionLife is the table of a session's life: the state after each event in each state. An event
// that is not listed changes nothing.
var sessionLife = [...]map[sessionEvent]sessionState{
	sessionOpening: {
		volumeOpened:   sessionOpen,
		clientDestroys: sessionDestroying,
		sessionEnds:    sessionEnding,
	},
	sessionOpen: {
		dataPathConfigured: sessionConfigured,
		clientDestroys:     sessionDestroying,
		sessionEnds:        sessionEnding,
	},
	sessionConfigured: {
		lanesStarted:   sessionStarted,
		targetStops:    sessionStopping,
		clientDestroys: sessionDestroying,
		sessionEnds:    sessionEnding,
	},
	sessionStarted: {
		targetStops:    sessionStopping,
		clientDestroys: sessionDestroying,
		sessionEnds:    sessionEnding,
	},
	sessionStopping: {
		clientDestroys: sessionDestroying,
		sessionEnds:    sessionEnding,
	},
	sessionDestroying: {
		sessionEnds: sessionEnding,
	},
	sessionEnding: {
		releaseFails:    sessionUnreleased,
		releaseSucceeds: sessionReleased,
	},
	sessionUnreleased: {
		releaseSucceeds: sessionReleased,
	},
	sessionReleased: {},
}

// isRunning reports whether the target has a data path that it has not been asked to stop.
func (s sessionState) isRunning() bool { return s == sessionConfigured || s == sessionStarted }

// needsTarget reports whether the loss of the target, or of a lane, ends the session.
func (s sessionState) needsTarget() bool { return s >= sessionOpen && s <= sessionStopping }

// sessionStage is the current state of a session, for any goroutine.
type sessionStage struct{ state atomic.Uint32 }

func (s *sessionStage) now() sessionState { return sessionState(s.state.Load()) }

// note changes the state as an event demands, and returns the former one.
func (s *sessionStage) note(event sessionEvent) (former sessionState) {
	for {
		former = s.now()
		next, changes := sessionLife[former][event]
		if !changes || s.state.CompareAndSwap(uint32(former), uint32(next)) {
			return former
		}
	}
}
