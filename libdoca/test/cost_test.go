// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// BenchmarkInitiators compares the rate of the initiator in C, over libdoca, with that of our own
// initiator. Both are processes, read blocks with two threads and 16 requests each, and take turns
// in front of one relay and target of ours. The metrics are the medians of the rates, and of the
// rates' ratios.
func BenchmarkInitiators(b *testing.B) {
	directory := b.TempDir()
	ourInitiator := testkit.Plain.Program(b, "initiator")
	theirInitiator := compileTrio(b, &toolchains[0])["storage_initiator"]
	m := mixture{dialects.DOCA3_2, theirs, ours, ours}
	startRelayForBoth(b, directory, startOurTarget(b, m, nil))
	const operations = 100_000 // per thread
	measureTheirs := func() (rate float64) {
		command := exec.Command(theirInitiator, "host", m.test())
		command.Env = append(environment(b, "{role: host, directory: "+directory+"}"),
			"STRATEGY=read", "OPERATIONS="+strconv.Itoa(operations))
		output := run(b, command)
		var reads int
		if _, err := fmt.Sscanf(string(output), "%d reads, %f IO/s", &reads, &rate); err != nil {
			b.Fatalf("%v: %s", err, output)
		}
		return rate
	}
	measureOurs := func() float64 {
		var document struct{ Result struct{ IOPS float64 } }
		err := json.Unmarshal(run(b, exec.Command(ourInitiator, "bench", "--rw", "read",
			"--emulated-dir", directory, "--queues", strconv.Itoa(ourQueues),
			"--queue-depth", strconv.Itoa(ourDepth), "--block-size", strconv.Itoa(ourBlock),
			"--run-limit-operation-count", strconv.Itoa(ourQueues*operations), "-o", "json")),
			&document)
		if err != nil {
			b.Fatal(err)
		}
		return document.Result.IOPS
	}
	var theirRates, ourRates, ratios []float64
	for b.Loop() {
		theirRate, ourRate := measureTheirs(), measureOurs()
		b.Logf("C %.0f IO/s, Go %.0f IO/s, ratio %.2f", theirRate, ourRate, theirRate/ourRate)
		theirRates = append(theirRates, theirRate)
		ourRates = append(ourRates, ourRate)
		ratios = append(ratios, theirRate/ourRate)
	}
	b.ReportMetric(median(theirRates), "C-IO/s")
	b.ReportMetric(median(ourRates), "Go-IO/s")
	b.ReportMetric(median(ratios), "ratio")
}

// startRelayForBoth starts a relay with a channel for each of the initiators.
func startRelayForBoth(b *testing.B, directory string, address netip.AddrPort) {
	var channels []relay.ChannelConfig
	for _, name := range []string{client.DefaultChannelName, client.ChannelName3} {
		channels = append(channels, relay.ChannelConfig{
			ChannelID: relay.ChannelID{Device: emulated.DefaultDevice,
				Representor: emulated.DefaultRepresentor, Name: name},
			Targets: []netip.AddrPort{address}, Volume: "disk",
		})
	}
	forwarder, err := relay.New(b.Context(), relay.Config{
		Comch: emulated.New(emulated.Options{Directory: directory}),
		RDMA:  iwarp.New(iwarp.Options{}), CPUs: []int{datapath.NoCPU},
		Settings: relay.Settings{Channels: channels},
	})
	if err != nil {
		b.Fatal(err)
	}
	serve(b, forwarder.Run, forwarder.Close)
}

// run returns what a command prints.
func run(b *testing.B, command *exec.Cmd) []byte {
	b.Helper()
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		b.Fatalf("%v: %v\n%s", command, err, stderr.Bytes())
	}
	return output
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
