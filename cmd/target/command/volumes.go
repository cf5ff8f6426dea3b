// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// volumeCloseTimeout bounds the flush of a volume that is closed.
const volumeCloseTimeout = time.Minute

// openTimeout bounds the wait for storage, such as a device that hangs, to open a volume. A Ceph
// cluster may take more than a minute to notice that a former owner has died.
var openTimeout = 3 * time.Minute

// firstOpenTimeout bounds how long a start or a reload waits until each volume has been opened, or
// has failed to. Those that take longer go on, and keep no other from being served.
var firstOpenTimeout = 10 * time.Second

// openPauses are the pauses between attempts to open a volume.
var openPauses = retry.Policy{FirstPause: time.Second, LongestPause: 30 * time.Second}

// openVolume and hideMemory are replaced by tests.
var (
	openVolume = volume.Open
	hideMemory = program.HideMemory
)

// volumes opens the configured volumes, and opens and closes them as the configuration and
// administrators change them.
type volumes struct {
	log  *zap.Logger
	hook func(volume.Volume) volume.Volume
	kept *systemd.Store    // witnesses of volumes
	ends *volume.CleanEnds // proofs that volumes were closed cleanly
	// coreDumps leaves keys in memory to debuggers (operations.core_dumps).
	coreDumps bool
	// turn has an element while a reload or an administrator changes what is served.
	turn chan struct{}

	mu sync.Mutex // guards what follows
	// configs are the volumes of the configuration in effect.
	configs []config.Volume
	strict  bool // a volume that cannot be opened ends the target, or rejects a reload
	// served holds the volumes by name.
	served map[string]*servedVolume
	// pending holds volumes that are being opened or closed, by name, unless one of that name is
	// served.
	pending map[string]pending
	closed  bool // no more changes
	// changes are those that are under way, which take as long as the requests of the sessions that
	// they end. One is added only while closed is false.
	changes sync.WaitGroup
}

// servedVolume is a volume under one of its names.
type servedVolume struct {
	config config.Volume
	target.Offer
	late  *volume.Late // Volume without hooks; nil if it was open from the beginning
	alias bool         // another name of a volume that is served under its own
	added bool         // by an administrator, and not by the configuration
}

// pending is a volume that is being opened or closed.
type pending struct {
	config config.Volume
	state  volume.State
	since  time.Time
}

// begins notes that a volume is being opened or closed, until the returned function is called.
func (v *volumes) begins(c config.Volume, state volume.State) (ended func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := pending{config: c, state: state, since: time.Now()}
	v.pending[c.Name] = p
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.pending[c.Name].since.Equal(p.since) {
			delete(v.pending, c.Name)
		}
	}
}

// isOpen reports whether the volume has been opened.
func (s *servedVolume) isOpen() bool { return s.late == nil || s.late.Opened() != nil }

// openVolumes opens the configured volumes. Those that cannot be opened yet are opened later. If
// the target is strict, it opens all or none.
func openVolumes(c *config.Target, log *zap.Logger,
	hook func(volume.Volume) volume.Volume) (*volumes, error) {
	directory := c.State.Path()
	if directory != "" {
		if err := files.CheckParent(directory); err != nil {
			return nil, fmt.Errorf("state.directory (--state-directory): %w", err)
		}
		directory = filepath.Join(directory, "clean-ends")
	}
	ends, err := volume.NewCleanEnds(directory)
	if err != nil {
		return nil, fmt.Errorf("%w: choose another one by --state-directory", err)
	}
	v := &volumes{log: log, hook: hook, kept: systemd.NewStore(log), ends: ends,
		turn: make(chan struct{}, 1), served: make(map[string]*servedVolume),
		pending: make(map[string]pending), strict: c.Startup.Strict, configs: c.Volumes,
		coreDumps: c.Operations.CoreDumps}
	v.turn <- struct{}{}
	defer v.finish()
	for _, c := range ordered(c.Volumes) {
		if err := v.open(c); err != nil {
			return nil, errors.Join(err, v.close())
		}
	}
	if isNoneLeft, err := awaitTried(v.all()); err != nil && isNoneLeft {
		return nil, errors.Join(err, v.close())
	}
	keepTrying(v.all()) // the others are worth serving
	v.forgetUnused()
	return v, nil
}

func (v *volumes) all() []*servedVolume {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Values(v.served))
}

// awaitTried waits until the first attempt to open each volume has ended, or firstOpenTimeout. It
// returns why some of them cannot be opened as they are configured, and whether that is all of
// them.
func awaitTried(all []*servedVolume) (isNoneLeft bool, misconfigured error) {
	ctx, cancel := context.WithTimeout(context.Background(), firstOpenTimeout)
	defer cancel()
	var errs []error
	isNoneLeft = true
	for _, s := range all {
		if s.late == nil || s.alias {
			continue
		}
		select {
		case <-s.late.Tried():
		case <-ctx.Done():
		}
		if reason := s.late.Status().Reason; volume.IsMisconfigured(reason) {
			errs = append(errs, asUsage(reason))
		} else {
			isNoneLeft = false
		}
	}
	return isNoneLeft, errors.Join(errs...)
}

// keepTrying makes volumes that could not be opened as they are configured try again, as others do:
// perhaps a mount was missing.
func keepTrying(all []*servedVolume) {
	for _, s := range all {
		if s.isOpen() {
			continue
		}
		if reason := s.late.Status().Reason; reason == nil || volume.IsMisconfigured(reason) {
			s.late.Retry()
		}
	}
}

// asUsage makes the error of a volume that is configured wrongly end the target as other wrong
// values do.
func asUsage(err error) error {
	if volume.IsMisconfigured(err) {
		return program.Usage(err)
	}
	return err
}

// retry makes volumes that could not be opened yet try again at once.
func (v *volumes) retry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.served {
		if !s.isOpen() {
			s.late.Retry()
		}
	}
}

// forgetUnused closes the witnesses of volumes that are not served any more. Which those are is
// known only when all have been opened.
func (v *volumes) forgetUnused() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.served {
		if !s.isOpen() {
			return
		}
	}
	v.kept.ForgetIf(func(name string) bool {
		for _, s := range v.served {
			if strings.HasPrefix(name, volume.KeptPrefix(s.Volume.Info().UUID)) {
				return false
			}
		}
		return true
	})
}

// ordered returns the volumes, those that are other names of one behind that one.
func ordered(configs []config.Volume) []config.Volume {
	sorted := slices.Clone(configs)
	slices.SortStableFunc(sorted, func(a, b config.Volume) int {
		return min(len(a.AliasOf()), 1) - min(len(b.AliasOf()), 1)
	})
	return sorted
}

// open opens a volume and remembers it.
func (v *volumes) open(c config.Volume) error {
	s, err := v.newConfigured(c)
	if err != nil {
		return err
	}
	v.mu.Lock()
	v.served[c.Name] = s
	v.mu.Unlock()
	return nil
}

// newConfigured opens a volume of the configuration, now or later.
func (v *volumes) newConfigured(c config.Volume) (*servedVolume, error) {
	v.mu.Lock()
	strict := v.strict
	v.mu.Unlock()
	if strict {
		s, err := v.newServed(c)
		return s, asUsage(err)
	}
	return v.newVolume(c, func(s *servedVolume, spec volume.Spec) error {
		s.late = volume.OpenLate(volume.LateConfig{Spec: spec, Open: openVolume, Pauses: openPauses,
			Silence: openTimeout, Refuses: volume.IsMisconfigured,
			OnOpen: func(opened volume.Volume) {
				v.logServing(opened)
				select {
				case v.turn <- struct{}{}:
					v.forgetUnused()
					v.finish()
				default: // a change is under way, and follows
				}
			}})
		s.Volume = v.hook(s.late)
		return nil
	})
}

// newServed opens a volume, or fails.
func (v *volumes) newServed(c config.Volume) (*servedVolume, error) {
	return v.newConfined(c, func(*volume.Spec) error { return nil })
}

// newConfined opens a volume, after confine has accepted or changed what is to be opened, or fails.
func (v *volumes) newConfined(c config.Volume,
	confine func(*volume.Spec) error) (*servedVolume, error) {
	return v.newVolume(c, func(s *servedVolume, spec volume.Spec) error {
		if err := confine(&spec); err != nil {
			return err
		}
		defer v.begins(c, volume.Opening)()
		opened, err := v.openWithin(spec, openTimeout)
		if err != nil {
			return err
		}
		s.Volume = v.hook(opened)
		v.logServing(opened)
		return nil
	})
}

// hideKeys hides the memory of the target before librbd reads the key of a Ceph client.
func (v *volumes) hideKeys(spec *volume.Spec) error {
	if v.coreDumps || !strings.HasPrefix(spec.Backend.String(), "rbd:") {
		return nil
	}
	return hideMemory()
}

// logServing logs that a volume has been opened. A stand-by logs by itself what it is.
func (v *volumes) logServing(opened volume.Volume) {
	if opened.Status().State != volume.Serving {
		return
	}
	info := opened.Info()
	v.log.Info("serving volume", zap.String("volume", info.Name),
		zap.Uint64("size_bytes", info.Size), zap.Uint32("block_size_bytes", info.BlockSize),
		zap.Stringer("uuid", info.UUID), zap.Bool("read_only", info.ReadOnly))
}

// newVolume returns a volume that open opens, or the one of which it is another name.
func (v *volumes) newVolume(c config.Volume,
	open func(*servedVolume, volume.Spec) error) (*servedVolume, error) {
	spec, err := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
	if err != nil {
		return nil, program.Usage(fmt.Errorf("volume %q: %w", c.Name, err))
	}
	if inMemory, is := spec.Backend.(volume.MemoryBackend); is {
		if err := memory.CheckTotal(inMemory.Size); err != nil { // which no later attempt mends
			return nil, program.Usage(fmt.Errorf("volume %q: %w: use a smaller one, or one in a "+
				"file (%s=file:PATH,size=%v)", c.Name, err, c.Name, size.Bytes(inMemory.Size)))
		}
	}
	s := &servedVolume{config: c,
		Offer: target.Offer{Exclusive: spec.Exclusive, Rights: c.Rights()}}
	if alias, ok := spec.Backend.(volume.Alias); ok {
		v.mu.Lock()
		defer v.mu.Unlock()
		of := v.served[alias.Of]
		if of == nil {
			return nil, fmt.Errorf("volume %q is another name of volume %q, which is not served",
				c.Name, alias.Of)
		}
		s.Volume, s.ReadOnly, s.alias, s.late = of.Volume, alias.ReadOnly, true, of.late
		return s, nil
	}
	spec.Logger, spec.Keeper, spec.CleanEnds = v.log, v.kept, v.ends
	if err := v.hideKeys(&spec); err != nil {
		return nil, err
	}
	if err := open(s, spec); err != nil {
		return nil, err
	}
	return s, nil
}

// offers returns what the target offers at its start.
func (v *volumes) offers() map[string]target.Offer {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make(map[string]target.Offer, len(v.served))
	for name, s := range v.served {
		all[name] = s.Offer
	}
	return all
}

// begin waits for the turn to change what is served. finish ends the turn.
func (v *volumes) begin(ctx context.Context) error {
	select {
	case v.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.Errorf(status.InUse, "another change of the volumes is under way: %w",
			context.Cause(ctx))
	}
}

func (v *volumes) finish() { <-v.turn }

// change carries out a change in the background, and ends the turn after it. It fails if the target
// ends.
func (v *volumes) change(carryOut func()) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		v.finish()
		return status.Errorf(status.Shutdown, "the target ends")
	}
	v.changes.Go(func() {
		defer v.finish()
		carryOut()
	})
	return nil
}

// openWithin opens a volume. If that takes too long, it fails, and closes the volume should it be
// opened later: storage that hangs must not keep other volumes from being served, added, and
// removed.
func (v *volumes) openWithin(spec volume.Spec, limit time.Duration) (volume.Volume, error) {
	type outcome struct {
		volume volume.Volume
		err    error
	}
	opened := make(chan outcome, 1)
	go func() {
		var o outcome
		o.volume, o.err = openVolume(spec)
		opened <- o
	}()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case o := <-opened:
		return o.volume, o.err
	case <-timeout.C:
	}
	go func() {
		if o := <-opened; o.err == nil {
			v.log.Warn("storage has answered too late: closing the volume again",
				zap.String("volume", spec.Name))
			if err := o.volume.Close(context.Background()); err != nil {
				v.log.Error("close volume", zap.String("volume", spec.Name), zap.Error(err))
			}
		}
	}()
	return nil, status.Errorf(status.TimeOut, "open volume %q: its storage has not answered within "+
		"%v: look at the kernel's log, and at the mount or the device", spec.Name, limit)
}

// prepare opens the volumes that configs has in addition. If the target is strict, a configuration
// with one that cannot be opened changes nothing; otherwise, it is opened later. The returned
// function makes the target serve what configs says: new volumes and rights at once, while the
// sessions of those that are gone or different are drained in the background, until ctx ends. It
// returns the names of volumes for which that has failed.
// Volumes that an administrator has added stay, unless configs has their names. prepare waits for
// other changes to end.
func (v *volumes) prepare(ctx context.Context, t *target.Target,
	configs []config.Volume, strict bool) (apply func() (failed []string, err error), err error) {
	if err := v.begin(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	former := v.strict
	v.strict = strict
	v.mu.Unlock()
	defer func() {
		if err != nil {
			v.mu.Lock()
			v.strict = former
			v.mu.Unlock()
			v.finish()
		}
	}()
	resized, judged := v.resized(configs), v.judged(configs)
	gone, different := v.compare(v.withAdded(configs))
	added := make(map[string]*servedVolume)
	for _, c := range configs {
		later := slices.ContainsFunc(different,
			func(d config.Volume) bool { return d.Name == c.Name })
		if v.find(c.Name) != nil || c.AliasOf() != "" || later {
			continue
		}
		if added[c.Name], err = v.newConfigured(c); err != nil {
			delete(added, c.Name)
			break
		}
	}
	if err == nil {
		_, err = awaitTried(slices.Collect(maps.Values(added)))
	}
	if err != nil {
		for _, s := range added {
			err = errors.Join(err, v.closeVolume(s))
		}
		return nil, err
	}
	return func() ([]string, error) {
		errs := make(map[string]error)
		for name, s := range added {
			errs[name] = v.offer(t, s)
		}
		for _, c := range resized {
			errs[c.Name] = v.resize(c)
		}
		v.adopt(configs)
		for _, c := range judged {
			errs[c.Name] = errors.Join(errs[c.Name], v.judge(t, c))
		}
		v.retry()
		var failed []string
		err := v.change(func() { v.replace(ctx, t, gone, different) })
		for _, name := range slices.Sorted(maps.Keys(errs)) {
			if errs[name] != nil {
				failed = append(failed, name)
				err = errors.Join(err, errs[name])
			}
		}
		return failed, err
	}, nil
}

// withAdded returns configs and the volumes that an administrator has added, except those whose
// names configs has, and names of volumes that are not served any more.
func (v *volumes) withAdded(configs []config.Volume) []config.Volume {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := slices.Clone(configs)
	has := func(name string) bool {
		return slices.ContainsFunc(all, func(c config.Volume) bool { return c.Name == name })
	}
	for _, alias := range []bool{false, true} {
		for name, s := range v.served {
			if s.added && s.alias == alias && !has(name) && (!alias || has(s.config.AliasOf())) {
				all = append(all, s.config)
			}
		}
	}
	return all
}

// resized returns the configurations of volumes that are served, with another size of the file.
func (v *volumes) resized(configs []config.Volume) []config.Volume {
	v.mu.Lock()
	defer v.mu.Unlock()
	var resized []config.Volume
	for _, c := range configs {
		if s := v.served[c.Name]; s != nil && s.isOpen() && s.config.Backend != c.Backend &&
			s.config.HasSameStorage(&c) {
			resized = append(resized, c)
		}
	}
	return resized
}

// resize extends a volume to the size that its configuration says. One that is larger stays as it
// is.
func (v *volumes) resize(c config.Volume) error {
	s := v.find(c.Name)
	if bytes := c.FileSize(); bytes > s.Volume.Info().Size {
		if err := s.Volume.Resize(bytes, false); err != nil {
			return err
		}
	}
	v.mu.Lock()
	s.config.Backend = c.Backend
	v.mu.Unlock()
	return nil
}

// judged returns the configurations of volumes that are served, with other rights of relays.
func (v *volumes) judged(configs []config.Volume) []config.Volume {
	v.mu.Lock()
	defer v.mu.Unlock()
	var judged []config.Volume
	for _, c := range configs {
		if s := v.served[c.Name]; s != nil && s.config.HasSameStorage(&c) &&
			!s.config.HasSameRights(&c) {
			judged = append(judged, c)
		}
	}
	return judged
}

// judge gives relays the rights that the configuration of a volume says.
func (v *volumes) judge(t *target.Target, c config.Volume) error {
	s := v.find(c.Name)
	v.mu.Lock()
	s.Rights = c.Rights()
	s.config.Readers, s.config.Writers = c.Readers, c.Writers
	s.config.Owners, s.config.Preemptors = c.Owners, c.Preemptors
	v.mu.Unlock()
	err := t.SetRights(c.Name, c.Rights())
	v.log.Info("changed the rights of relays", zap.String("volume", c.Name))
	return err
}

// adopt makes volumes that an administrator has added, and that the configuration has as well,
// volumes of the configuration.
func (v *volumes) adopt(configs []config.Volume) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range configs {
		if s := v.served[c.Name]; s != nil {
			s.added = false
		}
	}
}

// compare returns the names of the volumes that are not configured any more, or differently, and
// the configurations of the latter, of new names of volumes, and of new volumes whose file is that
// of one that goes, as of one that is renamed: they can be opened only when that is closed.
func (v *volumes) compare(configs []config.Volume) (gone []string, different []config.Volume) {
	v.mu.Lock()
	defer v.mu.Unlock()
	wanted := make(map[string]config.Volume)
	for _, c := range configs {
		wanted[c.Name] = c
	}
	changed := func(name string) bool {
		s, c := v.served[name], wanted[name]
		return s == nil || !s.config.HasSameStorage(&c) ||
			!s.isOpen() && s.config.Backend != c.Backend
	}
	isReleased := func(c config.Volume) bool {
		for name, s := range v.served {
			if now := wanted[name]; s.config.SharesFile(&c) && !s.config.HasSameStorage(&now) {
				return true
			}
		}
		return false
	}
	for _, c := range ordered(configs) {
		if v.served[c.Name] == nil && c.AliasOf() == "" && !isReleased(c) {
			continue // is new
		}
		if changed(c.Name) || c.AliasOf() != "" && changed(c.AliasOf()) {
			different = append(different, c)
		}
	}
	for name := range v.served {
		_, stays := wanted[name]
		isDifferent := slices.ContainsFunc(different,
			func(c config.Volume) bool { return c.Name == name })
		if !stays || isDifferent {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	return gone, different
}

func (v *volumes) find(name string) *servedVolume {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.served[name]
}

// offer makes the target serve a volume that has been opened.
func (v *volumes) offer(t *target.Target, s *servedVolume) error {
	if err := t.Offer(s.config.Name, s.Offer); err != nil {
		return errors.Join(err, v.closeVolume(s))
	}
	v.mu.Lock()
	v.served[s.config.Name] = s
	v.mu.Unlock()
	v.log.Info("offering volume", zap.String("volume", s.config.Name))
	return nil
}

// notServed is what the log says of a volume that replaced another one.
const notServed = "volume is not served any more: mend its configuration and reload"

// replace withdraws volumes, closes them, and opens and offers others.
func (v *volumes) replace(ctx context.Context, t *target.Target, gone []string,
	different []config.Volume) {
	var closing []*servedVolume
	ended := false
	for _, name := range gone {
		s, err := v.withdraw(ctx, t, name, retry.Bound{})
		if err != nil {
			v.log.Error("volume cannot be removed", zap.String("volume", name), zap.Error(err))
			ended = true // the end of the daemon closes this one and the following
			break
		}
		closing = append(closing, s)
	}
	for _, s := range closing {
		if err := v.closeVolume(s); err != nil {
			v.log.Error("close volume", zap.String("volume", s.config.Name), zap.Error(err))
		}
	}
	if ended {
		return
	}
	var opening []*servedVolume
	for _, c := range different {
		s, err := v.newConfigured(c)
		if err == nil {
			s.added = slices.ContainsFunc(closing, func(former *servedVolume) bool {
				return former.added && former.config.Name == c.Name
			})
			err = v.offer(t, s)
			opening = append(opening, s)
		}
		if err != nil {
			v.log.Error(notServed, zap.String("volume", c.Name), zap.Error(err))
		}
	}
	_, _ = awaitTried(opening)
	keepTrying(opening)
	v.forgetUnused()
}

// withdraw removes a volume from the target, after a drain for the time that drain allows. The
// caller closes it.
func (v *volumes) withdraw(ctx context.Context, t *target.Target, name string,
	drain retry.Bound) (*servedVolume, error) {
	if err := t.Withdraw(ctx, name, drain); err != nil {
		return nil, err
	}
	v.mu.Lock()
	s := v.served[name]
	delete(v.served, name)
	v.mu.Unlock()
	v.log.Info("removed volume", zap.String("volume", name))
	return s, nil
}

// close waits for changes, which the end of their context speeds up, makes the content of all
// volumes durable, and releases them.
func (v *volumes) close() error {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.changes.Wait()
	v.mu.Lock()
	closing := v.served
	v.served = nil
	v.mu.Unlock()
	var errs []error
	for _, s := range closing {
		errs = append(errs, v.closeVolume(s))
	}
	return errors.Join(errs...)
}

func (v *volumes) closeVolume(s *servedVolume) error {
	if s.alias {
		return nil
	}
	defer v.begins(s.config, volume.Closed)()
	ctx, cancel := context.WithTimeout(context.Background(), volumeCloseTimeout)
	defer cancel()
	wasOpen := s.isOpen()
	if err := s.Volume.Close(ctx); err != nil || !wasOpen {
		return err
	}
	v.log.Info("flushed and closed volume", zap.String("volume", s.config.Name))
	return nil
}
