// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// VolumesSchema names the format of VolumeList as JSON. Fields may be added within a version.
const VolumesSchema = "zc-relay.volumes/1"

// VolumeList is the document of VolumesPath.
type VolumeList struct {
	Schema  string   `json:"schema"`
	Volumes []Volume `json:"volumes"`
}

// Volume is a volume that a target serves.
type Volume struct {
	NewVolume
	// Kind is memory, file, rbd, or volume for another name of a volume.
	Kind string `json:"kind"`
	UUID string `json:"uuid"`
	// Size is in bytes.
	Size     uint64 `json:"size_bytes"`
	ReadOnly bool   `json:"read_only"`
	// Exclusive means that one owner at a time may open the volume for writing.
	Exclusive bool `json:"exclusive"`
	// Sessions is the number of sessions that have the volume open, under any of its names. Holder
	// is the client that has it open exclusively, "" if none has.
	Sessions int    `json:"sessions"`
	Holder   string `json:"holder,omitempty"`
	// HolderID names the holder for PreemptHolder.
	HolderID string `json:"holder_id,omitempty"`
	// State is a volume.State, which the volume entered at Since. Reason says why it is not
	// serving.
	State  string    `json:"state"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Origin is OriginConfiguration or OriginAdministrator.
	Origin string `json:"origin"`
}

// The values of Volume.Origin. A volume that an administrator has added lasts until an
// administrator removes it or the target ends. Reloads leave it alone, unless the configuration has
// a volume of that name: then it becomes that one.
const (
	OriginConfiguration = "configuration"
	OriginAdministrator = "administrator"
)

// NewVolume describes a volume as the configuration file does.
type NewVolume struct {
	Name    string `json:"name"`
	Backend string `json:"backend"`
	// BlockSize is in bytes; 0 means the default of the configuration file.
	BlockSize uint32 `json:"block_size_bytes"`
	// Readers, Writers, Owners, and Preemptors are names in the certificates of relays that may
	// only read, may read and write, may also open the volume exclusively, and may also preempt
	// holders. If all are empty, every relay may do everything.
	Readers    []string `json:"readers,omitempty"`
	Writers    []string `json:"writers,omitempty"`
	Owners     []string `json:"owners,omitempty"`
	Preemptors []string `json:"preemptors,omitempty"`
}

// WaitParameter is the query parameter that says how many milliseconds the daemon may wait for the
// end of a change of volumes or channels. ForceParameter, if it is "true", ends sessions without a
// drain.
const (
	WaitParameter  = "wait_ms"
	ForceParameter = "force"
)

// Volumes lists the volumes that a target serves, by name.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	var list VolumeList
	err := c.call(ctx, http.MethodGet, VolumesPath, nil, &list)
	return list.Volumes, err
}

// AddVolume makes a target open a volume and serve it, until it is removed or the target ends. It
// fails with AlreadyExist if the target serves a volume of that name, with InvalidValue if the
// description is wrong, and with InProgress if ctx has a deadline that is too short: the target
// then continues.
func (c *Client) AddVolume(ctx context.Context, v NewVolume) (Volume, error) {
	var added Volume
	err := c.change(ctx, http.MethodPost, VolumesPath, nil, v, &added)
	return added, err
}

// RemoveVolume makes a target drain the sessions of a volume, for the time that its configuration
// allows, end them, and close the volume. With force, it does not wait for requests in flight,
// which then fail at their clients. It fails with NotFound if the target has no volume of that
// name, with InUse if the volume has other names, and with InProgress if ctx has a deadline that is
// too short: the target then continues.
func (c *Client) RemoveVolume(ctx context.Context, name string, force bool) error {
	return c.change(ctx, http.MethodDelete, volumePath(name),
		url.Values{ForceParameter: {strconv.FormatBool(force)}}, nil, nil)
}

// VolumeSize is the document that asks for another size of a volume.
type VolumeSize struct {
	// Size is in bytes; 0 means the size that the storage has, if something else has changed it.
	Size uint64 `json:"size_bytes"`
	// Shrink allows a smaller size. What is beyond it is lost.
	Shrink bool `json:"shrink"`
}

// ResizeVolume changes the size of a volume whose content is in a file. Clients that have it open
// see it grow within a few seconds. It fails with BadState if the size is smaller than now and
// Shrink is not set, with InUse if it is smaller and sessions have the volume open, with
// NotSupported if something else manages the storage, with NotFound if the target has no volume of
// that name, and with InProgress if ctx has a deadline that is too short: the target then
// continues.
func (c *Client) ResizeVolume(ctx context.Context, name string, to VolumeSize) (Volume, error) {
	var resized Volume
	err := c.change(ctx, http.MethodPost, volumePath(name)+"/size", nil, to, &resized)
	return resized, err
}

// PreemptHolder makes a target end all sessions of a holder, which Volume.HolderID or
// Session.HolderID names, and waits until nothing of them can change the volume any more. The
// clients do not come back by themselves. It fails with InUse if another holder is in the place of
// the one that was named, does nothing if nobody is, and fails with InProgress if requests of the
// holder have not ended when ctx has a deadline: the holder is gone, and nobody else begins before
// they have.
func (c *Client) PreemptHolder(ctx context.Context, volume, holder string) error {
	path := volumePath(volume) + "/holders/" + url.PathEscape(holder)
	return c.change(ctx, http.MethodDelete, path, nil, nil, nil)
}

func volumePath(name string) string { return VolumesPath + "/" + url.PathEscape(name) }
