// SPDX-License-Identifier: Apache-2.0

// Package ends lets owners of a volume end while a network holds what was sent for them, and lets
// heirs begin. Owners, relays, and target are processes. Whatever arrives late must have no effect:
//
//   - What an heir has written, acknowledged, stays.
//   - What an heir finds when it has opened the volume stays until it writes.
//   - What an owner has been told to have failed does not happen afterwards.
package ends

import (
	"flag"
	"fmt"
	"hash/fnv"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

var (
	rounds  = flag.Int("rounds", 0, "how often to play each round")
	keep    = flag.String("keep", "", "directory for the logs of rounds that fail")
	keepAll = flag.Bool("keep-all", false, "keep the logs of all rounds")
)

// scenario is an end with an heir, and what the design promises about waits.
type scenario struct {
	end        end
	heir       heir
	told, open string
}

var scenarios = []scenario{
	{ownerKilled, sameRelay, "", "at once; stall or 10 s, then AGAIN"},
	{ownerKilled, otherRelay, "", "5 s"},
	{ownerPreempted, sameRelay, "stall or 6 s", "at once; stall or 10 s, then AGAIN"},
	{ownerPreempted, otherRelay, "stall or 6 s", "5 s"},
	{relayTimeout, sameRelay, "IO timeout + 5.05 s", "at once; stall or 10 s, then AGAIN"},
	{relayTimeout, otherRelay, "IO timeout + 5.05 s", "5 s"},
	{relayTimeout, livingWriter, "IO timeout + 5.05 s", ""},
	{relayTimeout, itself, "IO timeout + 5.05 s", "at once; stall or 10 s, then AGAIN"},
	{ownerTimeout, sameRelay, "IO timeout + 6.05 s", "at once; stall or 10 s, then AGAIN"},
	{ownerTimeout, otherRelay, "IO timeout + 6.05 s", "5 s"},
	{ownerTimeout, livingWriter, "IO timeout + 6.05 s", ""},
	{ownerTimeout, itself, "IO timeout + 6.05 s", "at once; stall or 10 s, then AGAIN"},
	{relayFrozen, otherRelay, "IO timeout + 6.1 s", "5 s"},
	{relayFrozen, livingWriter, "IO timeout + 6.1 s", ""},
	{relayKilled, sameRelay, "6.05 s", "5 s"},
	{relayKilled, otherRelay, "6.05 s", "5 s"},
	{relayKilled, livingWriter, "6.05 s", ""},
	{relayKilled, itself, "6.05 s", "5 s"},
	{targetFrozen, sameRelay, "5.05 s", "until it continues"},
	{targetFrozen, otherRelay, "5.05 s", "until it continues"},
	{targetKilled, sameRelay, "5.05 s", "restart; stall or 10 s, then AGAIN"},
	{targetKilled, otherRelay, "5.05 s", "restart"},
	{targetKilled, itself, "5.05 s", "restart; stall or 10 s, then AGAIN"},
	{targetKilledForGood, sameRelay, "IO timeout + 5.05 s", "take-over + 6 s"},
	{targetKilledForGood, otherRelay, "IO timeout + 5.05 s", "take-over + 6 s"},
	{targetKilledForGood, itself, "IO timeout + 5.05 s", "take-over + 6 s"},
	{targetTerminatedForGood, sameRelay, "IO timeout + 5.05 s", "take-over + 6 s"},
	{targetTerminatedForGood, otherRelay, "IO timeout + 5.05 s", "take-over + 6 s"},
	{targetTerminatedForGood, itself, "IO timeout + 5.05 s", "take-over + 6 s"},
}

var stalls = []time.Duration{300 * time.Millisecond, time.Second, 2500 * time.Millisecond,
	8 * time.Second, untilAcknowledged}

// waits are the longest ones of a scenario.
type waits struct {
	played, failed int
	told, open     time.Duration
}

func TestNothingTakesEffectAfterItsOwnerHasEnded(t *testing.T) {
	if *rounds == 0 {
		t.Skip("takes minutes: make peers SUITE=ends")
	}
	testkit.Plain.Directory(t)
	var mu sync.Mutex
	longest := make([]waits, len(scenarios))
	t.Run("rounds", func(t *testing.T) {
		seed := seedtest.Of(t)
		for n := range *rounds {
			for i, s := range scenarios {
				for _, stall := range stalls {
					name := fmt.Sprintf("%v/%v/%v/%d", s.end, s.heir, stallName(stall), n+1)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						r := &round{end: s.end, heir: s.heir, stall: stall}
						r.draw(seed<<32 ^ hash(name))
						o := r.play(t)
						mu.Lock()
						defer mu.Unlock()
						w := &longest[i]
						w.played++
						if len(o.findings) > 0 {
							w.failed++
						}
						w.told, w.open = max(w.told, o.told), max(w.open, o.open)
					})
				}
			}
		}
	})
	printTable(t, longest)
}

func stallName(stall time.Duration) string {
	if stall == untilAcknowledged {
		return "until acknowledged"
	}
	return stall.String()
}

func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// printTable prints the longest waits beside what the design promises on a machine that is quick.
func printTable(t *testing.T, longest []waits) {
	table := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	defer func() { _ = table.Flush() }()
	fmt.Fprintln(table, "end\their\trounds\tfailed\ttold after\tat most\topen\tat most")
	for i, s := range scenarios {
		w := longest[i]
		if w.played == 0 {
			continue
		}
		fmt.Fprintf(table, "%v\t%v\t%d\t%d\t%s\t%s\t%s\t%s\n", s.end, s.heir, w.played, w.failed,
			seconds(w.told), s.told, seconds(w.open), s.open)
	}
}

func seconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
