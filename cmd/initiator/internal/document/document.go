// Package document holds what the documents of the initiator's commands have in common.
package document

import (
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
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
