// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ChannelsSchema names the format of ChannelList as JSON. Fields may be added within a version.
const ChannelsSchema = "zc-relay.channels/1"

// ChannelList is the document of ChannelsPath.
type ChannelList struct {
	Schema   string    `json:"schema"`
	Channels []Channel `json:"channels"`
}

// Channel is a channel that a relay serves.
type Channel struct {
	// FullName identifies the channel: DEVICE/REPRESENTOR/NAME.
	FullName string `json:"channel"`
	NewChannel
	// Origin is OriginConfiguration or OriginAdministrator; empty for a channel that was removed
	// and waits for its sessions. Source says where the channel is defined: FILE:LINE, a flag, or
	// the file in which the relay keeps what administrators have added.
	Origin string `json:"origin,omitempty"`
	Source string `json:"source,omitempty"`
	// State is a relay.ChannelState, which the channel entered at Since. Reason says why clients
	// cannot connect.
	State  string    `json:"state"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Serving is the address of the target that serves new sessions or was the last to do so; empty
	// while it is not known. Link is the state of the connection to it, a relay.LinkState, and
	// LinkReason why it is not ready.
	Serving    string `json:"serving_target,omitempty"`
	Link       string `json:"link"`
	LinkReason string `json:"link_reason,omitempty"`
	// Sessions is the number of open sessions.
	Sessions int `json:"sessions"`
}

// NewChannel describes a channel as the configuration file does, key by key. Zero values mean the
// defaults. Sizes are text, such as "64MiB", and so are durations, such as "30s", and limits that
// may be "infinite".
type NewChannel struct {
	Name        string `json:"name,omitempty"`
	Device      string `json:"device,omitempty"`
	Representor string `json:"representor,omitempty"`
	// Target is HOST:PORT of the only target; Targets are those that take over from one another.
	Target         string           `json:"target,omitempty"`
	Targets        []string         `json:"targets,omitempty"`
	TargetOrder    string           `json:"target_order,omitempty"`
	Volume         string           `json:"volume,omitempty"`
	TLSServerName  string           `json:"tls_server_name,omitempty"`
	RDMAAddress    string           `json:"rdma_address,omitempty"`
	Isolation      string           `json:"isolation,omitempty"`
	ImportDevice   string           `json:"import_device,omitempty"`
	Protocol       string           `json:"protocol,omitempty"`
	TargetProtocol string           `json:"target_protocol,omitempty"`
	CPUs           []int            `json:"cpus,omitempty"`
	IOTimeout      string           `json:"io_timeout,omitempty"`
	Limits         ChannelLimits    `json:"limits,omitzero"`
	QoS            ChannelQoS       `json:"qos,omitzero"`
	Access         ChannelAccess    `json:"access,omitzero"`
	Reconnect      ChannelReconnect `json:"reconnect,omitzero"`
}

// ChannelLimits limits the resources of a channel's clients.
type ChannelLimits struct {
	Sessions     int    `json:"sessions,omitempty"`
	Queues       int    `json:"queues,omitempty"`
	Depth        int    `json:"depth,omitempty"`
	Outstanding  int    `json:"outstanding,omitempty"`
	BufferSize   string `json:"buffer_size,omitempty"`
	Export       string `json:"export,omitempty"`
	BounceMemory string `json:"bounce_memory,omitempty"`
	RingMemory   string `json:"ring_memory,omitempty"`
}

// ChannelQoS limits the rates of a channel's clients: of all sessions together, and of each.
type ChannelQoS struct {
	Channel RateLimits `json:"channel,omitzero"`
	Session RateLimits `json:"session,omitzero"`
}

// RateLimits limits IOs and bytes per second: a number, a size, or "infinite". Burst is how long
// unused ones add up.
type RateLimits struct {
	IOPS      string `json:"iops,omitempty"`
	Bandwidth string `json:"bandwidth,omitempty"`
	Burst     string `json:"burst,omitempty"`
}

// ChannelAccess says who may connect besides root and the relay's own user.
type ChannelAccess struct {
	AnyUser bool     `json:"any_user,omitempty"`
	Users   []string `json:"users,omitempty"`
}

// ChannelReconnect says what a channel does while its target is down.
type ChannelReconnect struct {
	Attempts     string `json:"attempts,omitempty"`
	GiveUpAfter  string `json:"give_up_after,omitempty"`
	FirstPause   string `json:"first_pause,omitempty"`
	LongestPause string `json:"longest_pause,omitempty"`
	SessionWait  string `json:"session_wait,omitempty"`
}

// ChannelTargets is the document that asks for other targets of a channel. One of the two is given.
type ChannelTargets struct {
	Target  string   `json:"target,omitempty"`
	Targets []string `json:"targets,omitempty"`
}

// Channels lists the channels that a relay serves, in the order of the configuration, and then
// those that are kept.
func (c *Client) Channels(ctx context.Context) ([]Channel, error) {
	var list ChannelList
	err := c.call(ctx, http.MethodGet, ChannelsPath, nil, &list)
	return list.Channels, err
}

// AddChannel makes a relay serve another channel, and keep it until it is removed: the relay serves
// it again after a restart. A channel that clients cannot reach yet, because a representor is
// missing for instance, is added even so, and its State says so. AddChannel fails with AlreadyExist
// if the relay has the channel, with InvalidValue if the description is wrong, with NotSupported if
// the relay has no directory to keep it in or cannot serve such a channel, and with InProgress if
// ctx has a deadline that is too short: the relay then continues.
func (c *Client) AddChannel(ctx context.Context, n NewChannel) (Channel, error) {
	var added Channel
	err := c.change(ctx, http.MethodPost, ChannelsPath, nil, n, &added)
	return added, err
}

// RemoveChannel makes a relay stop offering a channel that was added by AddChannel, complete the
// requests in flight for as long as its configuration allows, and end the sessions. With force, it
// does not wait for requests in flight, which then fail at their clients. The name is that of the
// service, or DEVICE/REPRESENTOR/NAME. RemoveChannel fails with NotFound if there is no such
// channel, with InvalidValue if there are several, with BadState if the configuration defines it,
// and with InProgress as AddChannel does.
func (c *Client) RemoveChannel(ctx context.Context, name string, force bool) error {
	return c.change(ctx, http.MethodDelete, channelPath(name),
		url.Values{ForceParameter: {strconv.FormatBool(force)}}, nil, nil)
}

// MoveChannel gives a channel that was added by AddChannel other targets. Sessions at targets that
// it no longer has are ended as by RemoveChannel, and clients reopen them at the present ones. It
// fails as RemoveChannel does, and with InvalidValue for wrong addresses.
func (c *Client) MoveChannel(ctx context.Context, name string, to ChannelTargets, force bool) (
	Channel, error) {
	var moved Channel
	err := c.change(ctx, http.MethodPost, channelPath(name)+"/target",
		url.Values{ForceParameter: {strconv.FormatBool(force)}}, to, &moved)
	return moved, err
}

// LimitChannel changes the rate limits of a channel that was added by AddChannel, at once and for
// open sessions, too. What is empty in limits stays as it is. It fails as RemoveChannel does, and
// with InvalidValue for wrong limits.
func (c *Client) LimitChannel(ctx context.Context, name string, limits ChannelQoS) (
	Channel, error) {
	var limited Channel
	err := c.change(ctx, http.MethodPost, channelPath(name)+"/qos", nil, limits, &limited)
	return limited, err
}

func channelPath(name string) string { return ChannelsPath + "/" + url.PathEscape(name) }
