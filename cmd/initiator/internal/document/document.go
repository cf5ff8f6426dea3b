// SPDX-License-Identifier: Apache-2.0

// Package document holds the common parts of the documents that the initiator's commands print.
package document

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// Connection identifies the connection to the relay.
type Connection struct {
	Provider string `json:"comch_provider"`
	Device   string `json:"device"`
	Channel  string `json:"command_channel_name"`
}

// Volume describes the volume that a command worked on.
type Volume struct {
	Name      string `json:"name"`
	UUID      string `json:"uuid"`
	Size      uint64 `json:"size_bytes"`
	BlockSize uint32 `json:"block_size_bytes"`
	ReadOnly  bool   `json:"read_only"`
	Transport string `json:"transport"`
	Relay     string `json:"relay"`
}

// CheckRange returns an error unless a range of the volume, in bytes, exists. A length of 0 means
// up to the end.
func CheckRange(info *client.Info, offset, length uint64) error {
	switch {
	case offset > info.Size:
		return fmt.Errorf("offset %v is beyond the end of volume %q, which has %v",
			size.Bytes(offset), info.Name, size.Bytes(info.Size))
	case length > info.Size-offset:
		return fmt.Errorf("%v at offset %v reach beyond the end of volume %q, which has %v",
			size.Bytes(length), size.Bytes(offset), info.Name, size.Bytes(info.Size))
	}
	return nil
}

// VolumeOf describes an opened volume.
func VolumeOf(info *client.Info) *Volume {
	return &Volume{
		Name: info.Name, UUID: info.UUID.String(), Size: info.Size,
		BlockSize: info.BlockSize,
		ReadOnly:  info.ReadOnly, Transport: info.Transport, Relay: info.Relay,
	}
}

// Table is a text of names and values, one pair per line.
type Table struct{ report.Table }

// Connection adds the connection to the relay, and the volume unless it is nil.
func (t *Table) Connection(c *Connection, v *Volume) {
	t.Row("channel", "%s on device %s (comch %s)", c.Channel, c.Device, c.Provider)
	if v == nil {
		return
	}
	t.Row("volume", "%s, %s (%d bytes) in blocks of %d bytes%s, UUID %s",
		v.Name, size.Bytes(v.Size), v.Size, v.BlockSize, readOnly(v), v.UUID)
	t.Row("transport", "%s, relay %s", v.Transport, v.Relay)
}

// Protection says what keeps others from reading and changing data between relay and target.
func (v *Volume) Protection() string {
	switch {
	case strings.HasSuffix(v.Transport, "+tls"):
		return "data is encrypted between relay and target (TLS 1.3)"
	case v.Transport == "shm":
		return "data stays on the machine of relay and target"
	}
	return "the relay does not encrypt data on its way to the target"
}

func readOnly(v *Volume) string {
	if v.ReadOnly {
		return ", read-only"
	}
	return ""
}

// ReconnectPolicy is the policy for reopening a lost volume. A limit is a number or "infinite".
type ReconnectPolicy struct {
	Attempts       any   `json:"attempts"`
	TimeoutNs      any   `json:"timeout_ns"`
	FirstPauseNs   int64 `json:"first_pause_ns"`
	LongestPauseNs int64 `json:"longest_pause_ns"`
}

// ReconnectPolicyOf describes a policy with all limits set, nil if there is none.
func ReconnectPolicyOf(p *retry.Policy) *ReconnectPolicy {
	if p == nil {
		return nil
	}
	d := &ReconnectPolicy{
		Attempts: p.Attempts.String(), TimeoutNs: p.Total.String(),
		FirstPauseNs: int64(p.FirstPause), LongestPauseNs: int64(p.LongestPause),
	}
	if p.Attempts != retry.AnyNumber() {
		d.Attempts = json.Number(p.Attempts.String())
	}
	if limit, ok := p.Total.Duration(); ok {
		d.TimeoutNs = int64(limit)
	}
	return d
}

// Reconnections counts what happened to the sessions of a run whose volume is reopened after a
// loss.
type Reconnections struct {
	Count           int   `json:"count"`
	OutageNs        int64 `json:"outage_ns"`
	LongestOutageNs int64 `json:"longest_outage_ns"`
	// RepeatedRequests counts requests that were outstanding when a session was lost.
	RepeatedRequests uint64 `json:"repeated_requests"`
	// LostWrites counts writes that were acknowledged but not flushed when a target restarted, and
	// so may be lost. Flushes failed to report this.
	LostWrites uint64 `json:"lost_writes"`
}

// Add adds the reconnections of a volume. It does nothing if r is nil.
func (r *Reconnections) Add(of client.Reconnections) {
	if r == nil {
		return
	}
	r.Count += of.Count
	r.LostWrites += of.LostWrites
	r.OutageNs += int64(of.Outage)
	r.LongestOutageNs = max(r.LongestOutageNs, int64(of.LongestOutage))
}

// Reconnections adds the number of reconnections, unless r is nil.
func (t *Table) Reconnections(r *Reconnections) {
	if r == nil {
		return
	}
	t.Row("reconnections", "%d, outages of %s in total, the longest %s", r.Count,
		size.FormatDuration(time.Duration(r.OutageNs)),
		size.FormatDuration(time.Duration(r.LongestOutageNs)))
	t.Row("",
		"%d requests repeated, %d acknowledged writes were not flushed when the target restarted",
		r.RepeatedRequests, r.LostWrites)
}

// Reconnect adds the policy for reopening the volume, unless there is none.
func (t *Table) Reconnect(p *ReconnectPolicy) {
	if p == nil {
		return
	}
	timeout := p.TimeoutNs
	if ns, ok := timeout.(int64); ok {
		timeout = size.FormatDuration(time.Duration(ns))
	}
	t.Row("reconnect", "attempts %v, timeout %v, pauses of %s to %s", p.Attempts, timeout,
		size.FormatDuration(time.Duration(p.FirstPauseNs)),
		size.FormatDuration(time.Duration(p.LongestPauseNs)))
}
