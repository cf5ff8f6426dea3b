// SPDX-License-Identifier: Apache-2.0

// Package examples tests the samples as processes.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m).Run()) }

// start starts a sample.
func start(t *testing.T, name string, arguments ...string) *testkit.Process {
	t.Helper()
	return testkit.Start(t, exec.Command(testkit.Examples.Program(t, name), arguments...))
}

// output returns all that a sample has printed when it has ended.
func output(p *testkit.Process) string {
	p.Wait()
	return p.Stdout.String() + p.Stderr.String()
}

// runPair runs a server and, once it listens, a client, and returns their outputs.
func runPair(t *testing.T, sample, listens string, server,
	client []string) (serverOutput, clientOutput string) {
	t.Helper()
	directory := t.TempDir()
	place := []string{"--emulated-dir", directory}
	serving := start(t, sample+"-server", append(place, server...)...)
	testkit.Eventually(t, "the server listens at "+listens, func() bool {
		_, err := os.Stat(filepath.Join(directory, listens))
		return err == nil
	})
	using := start(t, sample+"-client", append(place, client...)...)
	for _, p := range []*testkit.Process{using, serving} {
		if code := p.Wait(); code != 0 {
			t.Errorf("%s exited with %d", p.Name, code)
		}
	}
	return output(serving), output(using)
}

func TestSamplesExchangeTheirTexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sample, service string
	}{
		{"comch-ctrl-path", "comch_ctrl_path_sample_server"},
		{"comch-data-path-high-speed", "comch_data_path_sample_server"},
	} {
		for name, texts := range map[string]struct {
			server, client         []string
			toServer, toClient, at string
		}{
			"the default": {nil, nil, "Message from the client", "Message from the client",
				"b1:00.0/03:00.0/"},
			"their own": {
				[]string{"--pci-addr", "03:00.1", "--rep-pci", "b1:00.2", "--text", "from the DPU"},
				[]string{"-p", "b1:00.2", "-t", strings.Repeat("x", 4080)},
				strings.Repeat("x", 4080), "from the DPU", "b1:00.2/03:00.1/",
			},
		} {
			t.Run(c.sample+" with "+name, func(t *testing.T) {
				served, used := runPair(t, c.sample, texts.at+c.service, texts.server, texts.client)
				if want := "Message received: '" + texts.toServer + "'\n"; served != want {
					t.Errorf("server printed %q, want %q", served, want)
				}
				if want := "Message received: '" + texts.toClient + "'\n"; used != want {
					t.Errorf("client printed %q, want %q", used, want)
				}
			})
		}
	}
}

func TestSamplesSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arguments []string
		want      string
	}{
		"without server":    {nil, "NOT_FOUND"},
		"with a long text":  {[]string{"-t", strings.Repeat("x", 4081)}, "4081 bytes"},
		"with unknown flag": {[]string{"--fast"}, "unknown flag: --fast"},
	} {
		for _, sample := range []string{"comch-ctrl-path-client",
			"comch-data-path-high-speed-client"} {
			t.Run(sample+" "+name, func(t *testing.T) {
				p := start(t, sample, append(c.arguments, "--emulated-dir", t.TempDir())...)
				if text := output(p); p.Wait() == 0 || !strings.Contains(text, c.want) {
					t.Errorf("ended with %v and %q, want %q", p.Cmd.ProcessState, text, c.want)
				}
			})
		}
	}
}

func TestLocalMemoryIsCopiedByDMA(t *testing.T) {
	t.Parallel()
	for text, arguments := range map[string][]string{
		"This is a sample piece of text": nil,
		"another text":                   {"-p", "b1:00.0", "--text", "another text"},
	} {
		p := start(t, "dma-local-copy", arguments...)
		if want := "Success, memory copied and verified as correct: " + text + "\n"; p.Wait() != 0 ||
			output(p) != want {
			t.Errorf("ended with %v and %q; want %q", p.Cmd.ProcessState, output(p), want)
		}
	}
	if p := start(t, "dma-local-copy", "-p", "99:00.0"); p.Wait() == 0 ||
		!strings.Contains(output(p), "99:00.0") {
		t.Errorf("a missing device gave %q, and %v", output(p), p.Cmd.ProcessState)
	}
}

func TestAnUnknownProviderIsNamed(t *testing.T) {
	t.Parallel()
	for name, flag := range map[string]string{"comch-ctrl-path-client": "--comch-provider",
		"dma-local-copy": "--dma-provider"} {
		p := start(t, name, flag, "pigeon")
		if p.Wait() == 0 || !strings.Contains(output(p), "pigeon") {
			t.Errorf("%s: %q, and %v", name, output(p), p.Cmd.ProcessState)
		}
	}
}
