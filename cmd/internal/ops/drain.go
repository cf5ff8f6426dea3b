package ops

import (
	"encoding/json"
	"net/http"
	"time"
)

// DrainState is the answer to every request to /drain.
type DrainState struct {
	// Draining means that the daemon takes no new sessions.
	Draining bool `json:"draining"`
	// Since is when that began; missing if it has not.
	Since *time.Time `json:"since,omitempty"`
	// Sessions are those that are still open.
	Sessions int `json:"sessions"`
}

// Drainer is a daemon that can be made to take no new sessions. Its methods
// are called by several goroutines at once.
type Drainer interface {
	Drain()
	Resume()
	DrainState() DrainState
}

// DrainPath is where an Admin serves a Drainer: POST begins to drain, DELETE
// ends that, and GET tells how far it is. None of them waits.
const DrainPath = "/drain"

// HandleDrain serves DrainPath.
func (a *Admin) HandleDrain(d Drainer) {
	serve := func(act func()) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			act()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			_ = json.NewEncoder(w).Encode(d.DrainState()) // a client that went is its own business
		}
	}
	a.Handle("POST "+DrainPath, serve(d.Drain))
	a.Handle("DELETE "+DrainPath, serve(d.Resume))
	a.Handle("GET "+DrainPath, serve(func() {}))
}
