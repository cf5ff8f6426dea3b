// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/zc-relay/zc-relay/pkg/admin"
)

// ChannelKeeper is a daemon whose channels administrators change. Its methods may be called
// concurrently. A change that has not ended when its context does goes on, and the method fails
// with status.InProgress.
type ChannelKeeper interface {
	// AdminChannels lists the channels.
	AdminChannels() []admin.Channel
	AddChannel(ctx context.Context, n admin.NewChannel) (admin.Channel, error)
	// RemoveChannel drains the sessions of the channel unless force is set, and ends them.
	RemoveChannel(ctx context.Context, name string, force bool) error
	// MoveChannel ends the sessions at former targets in the same way.
	MoveChannel(ctx context.Context, name string, to admin.ChannelTargets, force bool) (
		admin.Channel, error)
	LimitChannel(ctx context.Context, name string, limits admin.ChannelQoS) (admin.Channel, error)
}

// HandleChannels serves admin.ChannelsPath.
func (a *Admin) HandleChannels(k ChannelKeeper) {
	a.handle("listChannels", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		list := admin.ChannelList{Schema: admin.ChannelsSchema, Channels: k.AdminChannels()}
		if list.Channels == nil {
			list.Channels = []admin.Channel{}
		}
		reply(w, list)
	}))
	a.handleChange("addChannel", operationAddChannel, channelObject, func(ctx context.Context,
		r *http.Request, c *change) (any, error) {
		var n admin.NewChannel
		if err := readDocument(r, &n); err != nil {
			return nil, err
		}
		c.object = channelObject(n.Name)
		c.detail = "volume " + n.Volume + " at " + targetsOf(n.Target, n.Targets)
		added, err := k.AddChannel(ctx, n)
		if err == nil {
			c.object = channelObject(added.FullName)
		}
		return added, err
	})
	a.handleChange("removeChannel", operationRemoveChannel, channelObject,
		func(ctx context.Context, r *http.Request, c *change) (any, error) {
			force, err := forceOf(r, c)
			if err != nil {
				return nil, err
			}
			return nil, k.RemoveChannel(ctx, r.PathValue("name"), force)
		})
	a.handleChange("moveChannel", operationMoveChannel, channelObject,
		func(ctx context.Context, r *http.Request, c *change) (any, error) {
			var to admin.ChannelTargets
			if err := readDocument(r, &to); err != nil {
				return nil, err
			}
			c.detail = "to " + targetsOf(to.Target, to.Targets)
			force, err := forceOf(r, c)
			if err != nil {
				return nil, err
			}
			return k.MoveChannel(ctx, r.PathValue("name"), to, force)
		})
	a.handleChange("limitChannel", operationLimitChannel, channelObject,
		func(ctx context.Context, r *http.Request, c *change) (any, error) {
			var limits admin.ChannelQoS
			if err := readDocument(r, &limits); err != nil {
				return nil, err
			}
			c.detail = limitsDetail(&limits)
			return k.LimitChannel(ctx, r.PathValue("name"), limits)
		})
}

// channelObject returns the object of a change of a channel.
func channelObject(name string) string { return strings.TrimSpace("channel " + name) }

func targetsOf(one string, several []string) string {
	return cmp.Or(one, strings.Join(several, ","))
}

// limitsDetail describes a change of rate limits, for the audit log.
func limitsDetail(limits *admin.ChannelQoS) string {
	var all []string
	for _, level := range []struct {
		name string
		admin.RateLimits
	}{{"channel", limits.Channel}, {"session", limits.Session}} {
		for _, limit := range [][2]string{{"iops", level.IOPS}, {"bandwidth", level.Bandwidth},
			{"burst", level.Burst}} {
			if limit[1] != "" {
				all = append(all, level.name+"."+limit[0]+"="+limit[1])
			}
		}
	}
	return strings.Join(all, " ")
}
