// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/zc-relay/zc-relay/cmd/internal/admincommands"
	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// daemon is where commands find a target.
var daemon = admincommands.Daemon{Address: adminserver.DefaultTargetAdminAddress,
	Variable: "ZC_TARGET_ADMIN",
	AddressIn: func(file string) (address, tokenFile string, err error) {
		c, err := config.LoadTarget(config.Sources{File: file, Environ: os.Environ(),
			Partial: true})
		if err != nil {
			return "", "", err
		}
		return c.Operations.Admin, c.Operations.AdminTokenFile, nil
	}}

// adminView is a target as its admin listener needs it.
type adminView struct {
	*target.Target
	volumes *volumes
	// ctx is the target's: changes of volumes go on when their requests have ended, but not when
	// the target has.
	ctx context.Context
	tls bool // relays have certificates
	// additions says what volumes that administrators add may be on.
	additions additions
}

// AdminSessions lists the sessions of relays.
func (a *adminView) AdminSessions() []admin.Session {
	sessions := a.OpenSessions()
	all := make([]admin.Session, len(sessions))
	for i, s := range sessions {
		all[i] = admin.Session{ID: s.ID, Opened: s.Opened.UTC(), Peer: s.Relay, Volume: s.Volume,
			Client: s.Client, HolderID: s.HolderID.String(),
			IO:     adminserver.CountIO(s.Counters.Total()),
			Queues: s.Queues, Transports: adminserver.DistinctTransports(s.Transports)}
	}
	return all
}

// AdminVolumes lists the volumes by name.
func (a *adminView) AdminVolumes() []admin.Volume {
	return a.volumes.list(a.Uses())
}

// list describes the volumes that are served, opened, or closed, by name.
func (v *volumes) list(uses map[string]target.Use) []admin.Volume {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []admin.Volume
	for name, s := range v.served {
		all = append(all, s.describe(uses[name]))
	}
	for name, p := range v.pending {
		if v.served[name] == nil {
			all = append(all, p.describe())
		}
	}
	slices.SortFunc(all, func(one, other admin.Volume) int {
		return cmp.Compare(one.Name, other.Name)
	})
	return all
}

// Volumes returns the state of each volume, first of those that are offered, then of those that are
// being opened or closed.
func (a *adminView) Volumes() []target.VolumeStatus {
	return a.volumes.withPending(a.Target.Volumes())
}

// withPending adds the volumes that are being opened or closed.
func (v *volumes) withPending(offered []target.VolumeStatus) []target.VolumeStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := offered
	for _, name := range slices.Sorted(maps.Keys(v.pending)) {
		isName := func(o target.VolumeStatus) bool { return o.Name == name }
		if !slices.ContainsFunc(offered, isName) {
			p := v.pending[name]
			all = append(all, target.VolumeStatus{Name: name, UUID: volume.UUID{}.String(),
				BlockSize: p.config.BlockSize, State: p.state, Since: p.since.UTC()})
		}
	}
	return all
}

// describe returns the volume as administrators see it.
func (p *pending) describe() admin.Volume {
	kind, _, _ := strings.Cut(p.config.Backend, ":")
	return admin.Volume{
		State: string(p.state), Since: p.since.UTC(), Kind: kind, UUID: volume.UUID{}.String(),
		NewVolume: admin.NewVolume{Name: p.config.Name, Backend: p.config.Backend,
			BlockSize: p.config.BlockSize, Readers: p.config.Readers, Writers: p.config.Writers,
			Owners: p.config.Owners, Preemptors: p.config.Preemptors},
		Origin: admin.OriginConfiguration,
	}
}

// describe returns the volume as administrators see it.
func (s *servedVolume) describe(use target.Use) admin.Volume {
	kind, _, _ := strings.Cut(s.config.Backend, ":")
	info, origin := s.Volume.Info(), admin.OriginConfiguration
	if s.added {
		origin = admin.OriginAdministrator
	}
	now := s.Volume.Status()
	return admin.Volume{
		State: string(now.State), Since: now.Since.UTC(), Reason: now.ReasonText(),
		NewVolume: admin.NewVolume{Name: s.config.Name, Backend: s.config.Backend,
			BlockSize: info.BlockSize, Readers: s.config.Readers, Writers: s.config.Writers,
			Owners: s.config.Owners, Preemptors: s.config.Preemptors},
		Kind: kind, UUID: info.UUID.String(), Size: info.Size,
		ReadOnly: info.ReadOnly || s.ReadOnly, Exclusive: s.Exclusive,
		Sessions: use.Sessions, Holder: use.Holder, HolderID: use.HolderID.String(),
		Origin: origin,
	}
}

// AddVolume opens a volume and serves it.
func (a *adminView) AddVolume(ctx context.Context, n admin.NewVolume) (admin.Volume, error) {
	c := config.Volume{Name: n.Name, Backend: n.Backend,
		BlockSize: cmp.Or(n.BlockSize, config.DefaultBlockSize),
		Readers:   n.Readers, Writers: n.Writers, Owners: n.Owners, Preemptors: n.Preemptors}
	if err := c.CheckAdded(a.tls); err != nil {
		return admin.Volume{}, err
	}
	var added admin.Volume
	err := a.change(ctx, func() error {
		v := a.volumes
		if v.find(c.Name) != nil {
			return status.Errorf(status.AlreadyExist, "the target already serves a volume %q",
				c.Name)
		}
		s, err := v.newConfined(c, func(spec *volume.Spec) error {
			return a.additions.confine(spec, v.configured())
		})
		if err != nil {
			return err
		}
		s.added = true
		if err := v.offer(a.Target, s); err != nil {
			return err
		}
		added = s.describe(target.Use{})
		return nil
	})
	if err != nil {
		return admin.Volume{}, err
	}
	return added, nil
}

// RemoveVolume drains the sessions of a volume, unless force is set, ends them, and closes it.
func (a *adminView) RemoveVolume(ctx context.Context, name string, force bool) error {
	drain := retry.Bound{}
	if force {
		drain = retry.Within(0)
	}
	return a.change(ctx, func() error {
		v := a.volumes
		if v.find(name) == nil {
			return status.Errorf(status.NotFound, "the target serves no volume %q", name)
		}
		if others := v.namesOf(name); len(others) > 0 {
			return status.Errorf(status.InUse, "volume %q has other names: remove %q first", name,
				others)
		}
		s, err := v.withdraw(a.ctx, a.Target, name, drain)
		if err != nil {
			return err
		}
		err = v.closeVolume(s)
		v.forgetUnused()
		if err != nil {
			return fmt.Errorf("volume %s is removed, but closing it has failed: %w", name, err)
		}
		return nil
	})
}

// ResizeVolume changes the size of a volume.
func (a *adminView) ResizeVolume(ctx context.Context, name string,
	to admin.VolumeSize) (admin.Volume, error) {
	var resized admin.Volume
	err := a.change(ctx, func() error {
		s := a.volumes.find(name)
		if s == nil {
			return status.Errorf(status.NotFound, "the target serves no volume %q", name)
		}
		if err := s.Volume.Resize(to.Size, to.Shrink); err != nil {
			return err
		}
		resized = s.describe(a.Uses()[name])
		return nil
	})
	if err != nil {
		return admin.Volume{}, err
	}
	return resized, nil
}

// PreemptHolder ends the sessions of a holder of a volume.
func (a *adminView) PreemptHolder(ctx context.Context, name, holder string) error {
	id, err := controlmsg.ParseHolderID(holder)
	if err != nil {
		return err
	}
	return a.Preempt(ctx, name, id)
}

// namesOf returns the other names of a volume.
func (v *volumes) namesOf(name string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var others []string
	for other, s := range v.served {
		if s.alias && s.config.AliasOf() == name {
			others = append(others, other)
		}
	}
	slices.Sort(others)
	return others
}

// change carries out a change of volumes, after those that are under way. If ctx ends before, the
// change goes on.
func (a *adminView) change(ctx context.Context, carryOut func() error) error {
	if err := a.volumes.begin(ctx); err != nil {
		return err
	}
	ended := make(chan error, 1)
	if err := a.volumes.change(func() { ended <- carryOut() }); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return status.Errorf(status.InProgress,
			"the change is still under way and goes on: the list of volumes shows its end")
	}
}
