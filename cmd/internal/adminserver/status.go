// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// Schema names the format of the document. Fields may be added within a version;
// docs/schemas/status.schema.json describes all of them.
const Schema = "zc-relay.status/1"

// Document is the status of a daemon. Counts start at 0 with the daemon and are never reset.
type Document struct {
	Schema  string    `json:"schema"`
	Program string    `json:"program"` // "zc-relay" or "target"
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started_at"`
	Now     time.Time `json:"now"`
	// Ready means that new sessions can be served. Reason explains why not.
	Ready  bool   `json:"ready"`
	Reason string `json:"not_ready_reason,omitempty"`
	// Reload is the latest reload, nil if there was none.
	Reload *admin.Reload `json:"reload,omitempty"`
	// RestartPending holds the keys of the settings whose values in the configuration file take
	// effect with the next start, as of the latest reload.
	RestartPending []string `json:"restart_pending,omitempty"`

	// Security is absent from releases that do not tell.
	Security *Security `json:"security,omitempty"`

	Workers []datapath.WorkerStatus `json:"workers"`
	// Only a relay has Channels, and only a target Volumes.
	Channels []relay.ChannelStatus `json:"channels,omitempty"`
	Volumes  []target.VolumeStatus `json:"volumes,omitempty"`
	// Sessions counts a target's control connections, and OpenSessions lists them, oldest first.
	// The sessions of a relay belong to its channels.
	Sessions     *SessionCount   `json:"sessions,omitempty"`
	OpenSessions []admin.Session `json:"open_sessions,omitempty"`
	// Faults holds the rules of --fault.
	Faults []Fault `json:"faults,omitempty"`
}

// Security says what protects the connections between relay and target, as configured.
type Security struct {
	// Control is "tls" or "off", Data what security.data says, and Fabric what security.fabric does.
	Control string `json:"control"`
	Data    string `json:"data"`
	Fabric  string `json:"fabric"`
}

// Fault is a rule by which faults are injected.
type Fault struct {
	Rule string `json:"rule"`
	// Operations counts those that the rule considers, Matches those that it has changed or traced.
	Operations uint64 `json:"operations"`
	Matches    uint64 `json:"matches"`
}

// SessionCount counts sessions.
type SessionCount struct {
	Open  int    `json:"sessions_open"`
	Total uint64 `json:"sessions_total"`
}

// Faults describes the rules of an injector, which may be nil.
func Faults(injector *fault.Injector) []Fault {
	var all []Fault
	for _, r := range injector.Rules() {
		all = append(all, Fault{Rule: r.Rule.String(), Operations: r.Seen, Matches: r.Matches})
	}
	return all
}
