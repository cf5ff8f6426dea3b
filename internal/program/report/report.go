// Package report is what the documents that programs print as their results
// have in common.
package report

import (
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Failure is why a run failed.
type Failure struct {
	// Code is the symbolic name of a status code.
	Code string `json:"code"`
	// Phase is what the program was doing.
	Phase   string `json:"phase"`
	Message string `json:"message"`
}

// FailureOf describes err, nil if that is nil. message is its text.
func FailureOf(phase string, err error, message string) *Failure {
	if err == nil {
		return nil
	}
	return &Failure{Code: status.CodeOf(err).String(), Phase: phase, Message: message}
}

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
