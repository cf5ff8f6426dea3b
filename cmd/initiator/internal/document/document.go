// Package document holds what the documents of the initiator's commands have in common.
package document

import (
	"encoding/json"
	"time"

	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Connection is the way to the relay.
type Connection struct {
	Provider string `json:"comch_provider"`
	Device   string `json:"device"`
	Channel  string `json:"command_channel_name"`
}

// Volume is what a program worked on.
type Volume struct {
	Name      string `json:"name"`
	UUID      string `json:"uuid"`
	Size      uint64 `json:"size_bytes"`
	BlockSize uint32 `json:"block_size_bytes"`
	ReadOnly  bool   `json:"read_only"`
	Transport string `json:"transport"`
	Relay     string `json:"relay"`
}

// VolumeOf is what a document says of an opened volume.
func VolumeOf(info *client.Info) *Volume {
	return &Volume{
		Name: info.Name, UUID: volume.UUID(info.UUID).String(), Size: info.Size, BlockSize: info.BlockSize,
		ReadOnly: info.ReadOnly, Transport: info.Transport, Relay: info.Relay,
	}
}

// Table is a text of names and values, one pair a line.
type Table struct{ report.Table }

// Connection adds the way to the relay, and the volume unless it is nil.
func (t *Table) Connection(c *Connection, v *Volume) {
	t.Row("channel", "%s on device %s (comch %s)", c.Channel, c.Device, c.Provider)
	if v == nil {
		return
	}
	t.Row("volume", "%s, %s (%d bytes) in blocks of %d bytes%s, UUID %s",
		v.Name, size.Bytes(v.Size), v.Size, v.BlockSize, readOnly(v), v.UUID)
	t.Row("transport", "%s, relay %s", v.Transport, v.Relay)
}

func readOnly(v *Volume) string {
	if v.ReadOnly {
		return ", read-only"
	}
	return ""
}

// ReconnectPolicy is the policy in effect by which a lost volume is reopened.
// A limit is a number or "infinite".
type ReconnectPolicy struct {
	Attempts       any   `json:"attempts"`
	TimeoutNs      any   `json:"timeout_ns"`
	FirstPauseNs   int64 `json:"first_pause_ns"`
	LongestPauseNs int64 `json:"longest_pause_ns"`
}

// ReconnectPolicyOf describes a policy, whose limits are set; nil if there is
// none.
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

// Reconnections is what became of the sessions of a run whose volume is
// reopened when it is lost.
type Reconnections struct {
	Count           int   `json:"count"`
	OutageNs        int64 `json:"outage_ns"`
	LongestOutageNs int64 `json:"longest_outage_ns"`
	// RepeatedRequests were outstanding when a session was lost.
	RepeatedRequests uint64 `json:"repeated_requests"`
	// LostWrites had been acknowledged and not flushed when a target
	// restarted: they may be lost. Flushes have failed to tell of it.
	LostWrites uint64 `json:"lost_writes"`
}

// Add adds what a volume knows, unless nobody wants to know.
func (r *Reconnections) Add(of client.Reconnections) {
	if r == nil {
		return
	}
	r.Count += of.Count
	r.LostWrites += of.LostWrites
	r.OutageNs += int64(of.Outage)
	r.LongestOutageNs = max(r.LongestOutageNs, int64(of.LongestOutage))
}

// Reconnections adds how often the volume was reopened, if it could be.
func (t *Table) Reconnections(r *Reconnections) {
	if r == nil {
		return
	}
	t.Row("reconnections", "%d, outages of %s in all, the longest of %s", r.Count,
		size.FormatDuration(time.Duration(r.OutageNs)), size.FormatDuration(time.Duration(r.LongestOutageNs)))
	t.Row("", "%d requests repeated, %d acknowledged writes not flushed when the target restarted", r.RepeatedRequests, r.LostWrites)
}

// Reconnect adds the policy by which the volume is reopened, if there is one.
func (t *Table) Reconnect(p *ReconnectPolicy) {
	if p == nil {
		return
	}
	timeout := p.TimeoutNs
	if ns, ok := timeout.(int64); ok {
		timeout = size.FormatDuration(time.Duration(ns))
	}
	t.Row("reconnect", "attempts %v, timeout %v, pauses of %s to %s", p.Attempts, timeout,
		size.FormatDuration(time.Duration(p.FirstPauseNs)), size.FormatDuration(time.Duration(p.LongestPauseNs)))
}
