// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// startRivals starts two targets that contend for an image, and a relay with a channel to both.
func startRivals(t *testing.T, image *volumetest.SharedImage) (*fleet, [2]*volumetest.Program) {
	f := &fleet{Chain: chaintest.New(t)}
	var programs [2]*volumetest.Program
	var addresses []netip.AddrPort
	for i := range programs {
		programs[i] = &volumetest.Program{Image: image}
		v, err := volume.Open(volume.Spec{Name: volumeName, BlockSize: blockSize,
			Backend: programs[i], Logger: f.Log.Named(fmt.Sprint("volume-", i))})
		if err != nil {
			t.Fatal(err)
		}
		c := &chaintest.Chain{T: t, Log: f.Log, Loopback: f.Loopback}
		c.StartTargetWith(options{}, c.Loopback, map[string]target.Offer{volumeName: {Volume: v}})
		t.Cleanup(func() { c.StopTarget() })
		f.targets = append(f.targets, c)
		addresses = append(addresses, c.Target.Address())
	}
	config := chaintest.ChannelTo(client.DefaultChannelName, addresses[0])
	config.Targets = addresses
	config.Reconnect.FirstPause, config.Reconnect.LongestPause = 10*time.Millisecond,
		100*time.Millisecond
	f.StartRelayWith(relay.Config{Settings: relay.Settings{
		Channels: []relay.ChannelConfig{config}}})
	t.Cleanup(func() { f.StopRelay() })
	return f, programs
}

// The target that owns the image stands still while clients write, the other one takes over, and
// the former continues. Clients notice an outage, and nothing else.
func TestClientsFollowAVolumeThatIsTakenOver(t *testing.T) {
	chaintest.Parallel(t)
	image := volumetest.NewSharedImage(volumeSize)
	f, programs := startRivals(t, image)
	config := f.Config()
	config.Reconnect = chaintest.Reconnecting()
	volumes := [2]*client.Volume{f.Open(config), f.Open(config)}
	var last [2]byte
	stop := make(chan struct{})
	var writing sync.WaitGroup
	var mu sync.Mutex
	for i, v := range volumes {
		writing.Go(func() {
			for n := byte(1); ; n++ {
				if _, err := v.WriteAt(bytes.Repeat([]byte{n}, blockSize),
					int64(i*blockSize)); err != nil {
					t.Errorf("client %d: write: %v", i, err)
					return
				}
				mu.Lock()
				last[i] = n
				mu.Unlock()
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	await := func(address netip.AddrPort) {
		f.Await("the channel uses the other target", func() bool {
			s := f.Status(client.DefaultChannelName)
			return s.Target == address && s.Link.State == relay.LinkReady
		})
	}
	const rounds = 4
	for round := range rounds {
		former, next := round%2, (round+1)%2
		programs[former].Stop()
		f.Await("the other target owns the image", func() bool {
			owners, _ := image.Owners()
			return owners == round+2
		})
		programs[former].Continue()
		await(f.targets[next].Target.Address())
		for _, v := range volumes {
			f.Await("the client writes again", func() bool {
				return v.Reconnections().Count > round
			})
		}
	}
	close(stop)
	writing.Wait()
	got := image.Content()
	for i, v := range volumes {
		if !bytes.Equal(got[i*blockSize:][:blockSize], bytes.Repeat([]byte{last[i]}, blockSize)) {
			t.Errorf("client %d: an acknowledged write is lost, or an old one has come after it", i)
		}
		if r := v.Reconnections(); r.LostWrites > 0 {
			t.Errorf("client %d: %+v", i, r)
		}
	}
	if owners, _ := image.Owners(); owners != rounds+1 {
		t.Errorf("the image has had %d owners in %d rounds", owners, rounds)
	}
	if moves := f.Status(client.DefaultChannelName).TargetMoves; moves != rounds {
		t.Errorf("the channel has moved %d times", moves)
	}
}
