// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/recurrence"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Outages joins what the channels of a relay log about targets that are down. The first failure is
// logged at once, and then all failed attempts of all channels together now and then: hundreds of
// channels may have the same target.
type Outages struct {
	// conversations has those that have failed before a target has opened the volume.
	conversations controlmsg.Rejections

	mu   sync.Mutex
	open map[outageID]*outage
}

// outageID distinguishes outages.
type outageID struct {
	target netip.AddrPort
	code   status.Code
	// of is the channel's link if the target has answered: then the reason may be the channel's.
	of *Link
}

// outage is one that has not ended.
type outage struct {
	links  map[*Link]bool        // for which the target is down
	failed recurrence.Recurrence // attempts of all links
}

// failed logs a failed attempt of a link, as message and fields, if it is the first one of an
// outage. Of later ones it logs how many there were.
func (o *Outages) failed(l *Link, message string, reason error, fields ...zap.Field) {
	id := outageID{target: l.Address, code: status.CodeOf(reason)}
	if _, answered := errors.AsType[*controlmsg.Error](reason); answered {
		id.of = l
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	current := o.open[id]
	if current == nil {
		current = &outage{links: make(map[*Link]bool)}
		if o.open == nil {
			o.open = make(map[outageID]*outage)
		}
		o.open[id] = current
	}
	if !current.links[l] {
		o.leave(l)
		current.links[l] = true
	}
	if !current.failed.Occur(time.Now()) {
		return
	}
	if again := current.failed.Fields(); again != nil {
		fields = append(again, zap.Int("channels", len(current.links)))
	}
	l.log.Warn(message, append(fields, zap.Error(reason))...)
}

// ended forgets that the target of a link is down.
func (o *Outages) ended(l *Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leave(l)
}

// leave takes a link out of its outage. The caller holds mu.
func (o *Outages) leave(l *Link) {
	for id, current := range o.open {
		if current.links[l] {
			delete(current.links, l)
			if len(current.links) == 0 {
				delete(o.open, id)
			}
		}
	}
}
