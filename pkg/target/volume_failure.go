// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// failureInterval is the time between two looks for volumes that have failed.
const failureInterval = time.Second

// checkUsable returns an error if the volume of an offer serves nothing, not even reads: a session
// would only fail each of its requests.
func checkUsable(offer *offer) error {
	now := offer.Volume.Status()
	switch {
	case now.State == volume.Opening:
		return status.Errorf(status.InProgress, "volume %q is being opened, since %s", offer.name,
			now.Since.UTC().Format(time.RFC3339))
	case now.State != volume.Failed || now.IsReadable:
		return nil
	case now.Attempt > 0: // the code of the reason is about the storage, and not about the relay
		return status.Errorf(status.IOFailed, "volume %q cannot be opened, since %s: %w",
			offer.name, now.Since.UTC().Format(time.RFC3339), now.Reason)
	}
	return fmt.Errorf("volume %q has failed, at %s: %w", offer.name,
		now.Since.UTC().Format(time.RFC3339), now.Reason)
}

// watchVolumes ends sessions that have opened a volume, and do nothing with it, when it fails. With
// such a session, a relay knows whether it can serve clients. A session that is in use goes on: its
// client learns of the failure from its requests.
func (t *Target) watchVolumes(ctx context.Context) {
	t.log.Debug("watching the volumes")
	defer t.log.Debug("no longer watching the volumes")
	ticker := time.NewTicker(failureInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, s := range t.admission.open() {
				s.endIfFailed()
			}
		}
	}
}

func (s *session) endIfFailed() {
	offer := s.served.Load()
	if offer == nil || len(s.openLanes()) > 0 {
		return
	}
	if err := checkUsable(offer); err != nil {
		s.cancel(err)
	}
}
