// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
)

// commandOperations is how many requests an initiator of the commands makes.
const commandOperations = 2000

// Our programs, built with the emulation, take each position of the chain by the commands in
// docs/guides/libdoca.md.
func TestOurCommandsInTheStorageApplicationsChain(t *testing.T) {
	t.Parallel()
	trio := compileTrio(t, &toolchains[0])
	for _, m := range []mixture{
		{dialects.DOCA3_2, ours, ours, theirs}, {dialects.DOCA3_2, ours, theirs, ours},
		{dialects.DOCA3_2, theirs, ours, ours},
		{dialects.DOCA2_10, ours, theirs, ours}, {dialects.DOCA3_0, ours, theirs, theirs},
	} {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			c := &commands{t: t, mixture: m, directory: t.TempDir()}
			c.run(trio)
		})
	}
}

// commands is a chain of programs, of which ours are run by their commands.
type commands struct {
	t         *testing.T
	mixture   mixture
	directory string
}

func (c *commands) run(trio map[string]string) {
	t, m := c.t, c.mixture
	var address netip.AddrPort
	var ends []func()
	if m.target == theirs {
		process := startProgram(t, trio["storage_target"], m.test(), c.directory)
		address = process.address(t)
		ends = append(ends, process.await)
	} else {
		address = c.startTarget()
	}
	if m.relay == theirs {
		process := startProgram(t, trio["storage_relay"], m.test(), c.directory,
			"TARGET="+strconv.Itoa(int(address.Port())))
		process.expect(t, "ready")
		ends = append(ends, process.await)
	} else {
		c.startRelay(address)
	}
	if m.initiator == theirs {
		runInitiator(t, trio["storage_initiator"], m.test(), c.directory)
	} else {
		c.runBench()
	}
	for _, await := range ends {
		await()
	}
}

func (c *commands) startTarget() netip.AddrPort {
	file := filepath.Join(c.directory, "target.address")
	arguments := []string{"--volume", "disk=memory:4MiB", "--listen-address", loopback.String(),
		"--listen-port", "0", "--address-file", file}
	if c.mixture.relay == theirs {
		arguments = append(arguments, "--rdma-provider", "doca", "--rdma-device", "03:00.0")
	}
	c.start("target", arguments...)
	var address netip.AddrPort
	testkit.Eventually(c.t, "the target listens", func() bool {
		text, err := os.ReadFile(file)
		if err == nil {
			address, err = netip.ParseAddrPort(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	return address
}

func (c *commands) startRelay(address netip.AddrPort) {
	arguments := []string{"run", "--storage-server", address.String(), "--volume", "disk",
		"--emulated-dir", c.directory}
	if c.mixture.target == theirs {
		arguments = append(arguments, "--target-protocol", c.mixture.version.String(),
			"--rdma-provider", "doca", "--rdma-device", "03:00.0")
	}
	if c.mixture.initiator == theirs {
		arguments = append(arguments, "--command-channel-name", client.ChannelName3)
	}
	c.start("zc-relay", arguments...).AwaitLog("listening for clients")
}

// runBench writes blocks with our initiator, which reads them back and compares.
func (c *commands) runBench() {
	arguments := []string{"bench", "-d", "b1:00.0", "--rw", "write",
		"--seed", "1", "--validate-writes", "--overwrite", "--queues", strconv.Itoa(ourQueues),
		"--queue-depth", strconv.Itoa(ourDepth), "--block-size", strconv.Itoa(ourBlock),
		"--run-limit-operation-count", strconv.Itoa(commandOperations)}
	if c.mixture.relay == theirs {
		arguments = append(arguments, "--protocol", c.mixture.version.String(),
			"--comch-provider", "doca")
	} else {
		arguments = append(arguments, "--emulated-dir", c.directory)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), testTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, testkit.Emulation.Program(c.t, "initiator"), arguments...)
	command.Env = append(os.Environ(), "ZC_DOCA_EMULATION={directory: "+c.directory+"}")
	output, err := command.CombinedOutput()
	if err != nil {
		c.t.Errorf("the initiator: %v", err)
	}
	c.t.Logf("%s", output)
}

// start starts one of our daemons, which ends with the test.
func (c *commands) start(name string, arguments ...string) *testkit.Process {
	c.t.Helper()
	p := testkit.Start(c.t, exec.Command(testkit.Emulation.Program(c.t, name), arguments...))
	c.t.Cleanup(p.Terminate)
	return p
}
