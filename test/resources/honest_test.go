// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// honestBound bounds how long an honest client may have to wait for its service. It normally takes
// milliseconds.
const honestBound = 30 * time.Second

// serveHonestClient opens the volume, writes, flushes, reads back, and closes.
func (c *chain) serveHonestClient(seed uint64) {
	c.t.Helper()
	started := time.Now()
	ctx, cancel := context.WithDeadline(context.Background(), started.Add(honestBound))
	defer cancel()
	var errs []error
	for {
		err := c.useVolume(ctx, rand.New(rand.NewPCG(seed, 1<<62)))
		if err == nil {
			break
		}
		errs = append(errs, err)
		if ctx.Err() != nil || errors.Is(err, errWrongData) {
			c.fatalf("an honest client was not served within %v: %v", time.Since(started),
				errors.Join(errs...))
		}
	}
	took := time.Since(started)
	c.honest = append(c.honest, took)
	if len(errs) > 0 || took > 2*time.Second {
		c.t.Logf("seed %d: the honest client was served after %v and %d attempts that failed: %v",
			seed, took, len(errs), errors.Join(errs...))
	}
}

var errWrongData = errors.New("the volume has returned wrong data")

func (c *chain) useVolume(ctx context.Context, random *rand.Rand) (err error) {
	volume, err := client.Open(ctx, client.Config{Provider: c.comch, ChannelName: "disk",
		Device: emulated.DefaultHostDevice, SyncDepth: 4, BufferSize: 64 << 10,
		Queues:         3, // so that every worker serves one
		ControlTimeout: honestBound, IOTimeout: honestBound, Software: "honest client"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, volume.Close(ctx)) }()
	data, back := make([]byte, 256<<10), make([]byte, 256<<10)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	offset := random.Int64N(volumeSize/blockSize-int64(len(data))/blockSize) * blockSize
	if _, err := volume.WriteAt(data, offset); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := volume.Flush(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	if _, err := volume.ReadAt(back, offset); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if !bytes.Equal(data, back) {
		return errWrongData
	}
	return nil
}

// report logs what has happened.
func (c *chain) report() {
	s := &c.totals
	c.t.Logf("%d bursts in %v with %d peers: %d connections; %d volumes opened, %d data paths "+
		"configured, %d started; %d IO messages", s.bursts, s.bursting.Round(time.Millisecond),
		s.peers, s.connections.Load(), s.opened.Load(), s.configured.Load(), s.started.Load(),
		s.messages.Load())
	for _, d := range []*daemon{c.target, c.relay} {
		u, metrics, err := d.measureFully()
		c.t.Logf("%s before: %v", d.Name, d.baseline)
		c.t.Logf("%s at most: %v", d.Name, d.most)
		c.t.Logf("%s after: %v, %v", d.Name, u, err)
		c.t.Logf("%s: sessions %v, connects %v, back pressure %v, CPU %v s", d.Name,
			metrics["zc_relay_sessions_total"]+metrics["zc_target_sessions_total"],
			metrics["zc_relay_target_connects_total"],
			metrics["zc_relay_back_pressure_total"]+metrics["zc_target_back_pressure_total"],
			metrics["process_cpu_seconds_total"])
	}
	slices.Sort(c.honest)
	c.t.Logf("the longest return to rest took %v", s.returning)
	c.t.Logf("the honest client: median %v, longest %v; at most %d connections were in TIME_WAIT",
		c.honest[len(c.honest)/2], c.honest[len(c.honest)-1], s.timeWait)
}
