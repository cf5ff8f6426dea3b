// Package examples tests the samples as processes.
package examples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait, so that a test that would hang fails.
const patience = 2 * time.Minute

// programs is the directory into which TestMain builds the samples.
var programs string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if programs, err = os.MkdirTemp("", "zc-relay-examples"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	if output, err := exec.Command("go", "build", "-o", programs+"/",
		"./...").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the samples: %w\n%s", err, output)
	}
	return m.Run(), nil
}

// outcome is the outcome of one run of a sample.
type outcome struct {
	output string
	err    error
}

// start runs a sample and returns a channel that delivers its outcome.
func start(t *testing.T, name string, arguments ...string) <-chan outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	ended := make(chan outcome, 1)
	go func() {
		defer cancel()
		output, err := exec.CommandContext(ctx, filepath.Join(programs, name),
			arguments...).CombinedOutput()
		ended <- outcome{string(output), err}
	}()
	return ended
}

// runPair runs a server and, once it listens, a client, and returns their outputs.
func runPair(t *testing.T, sample, listens string, server,
	client []string) (serverOutput, clientOutput string) {
	t.Helper()
	directory := t.TempDir()
	place := []string{"--emulated-dir", directory}
	serving := start(t, sample+"-server", append(place, server...)...)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(directory, listens)); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not listen at %s", listens)
		}
	}
	using := <-start(t, sample+"-client", append(place, client...)...)
	served := <-serving
	for what, o := range map[string]outcome{"server": served, "client": using} {
		if o.err != nil {
			t.Errorf("%s: %v\n%s", what, o.err, o.output)
		}
	}
	return served.output, using.output
}

func TestSamplesExchangeTheirTexts(t *testing.T) {
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
				o := <-start(t, sample, append(c.arguments, "--emulated-dir", t.TempDir())...)
				if o.err == nil || !strings.Contains(o.output, c.want) {
					t.Errorf("ended with %v and %q, want %q", o.err, o.output, c.want)
				}
			})
		}
	}
}

func TestLocalMemoryIsCopiedByDMA(t *testing.T) {
	for text, arguments := range map[string][]string{
		"This is a sample piece of text": nil,
		"another text":                   {"-p", "b1:00.0", "--text", "another text"},
	} {
		o := <-start(t, "dma-local-copy", arguments...)
		if want := "Success, memory copied and verified as correct: " + text + "\n"; o.err != nil ||
			o.output != want {
			t.Errorf("%q, error %v; want %q", o.output, o.err, want)
		}
	}
	if o := <-start(t, "dma-local-copy", "-p", "99:00.0"); o.err == nil ||
		!strings.Contains(o.output, "99:00.0") {
		t.Errorf("a missing device gave %q, error %v", o.output, o.err)
	}
}

func TestAnUnknownProviderIsNamed(t *testing.T) {
	for name, flag := range map[string]string{"comch-ctrl-path-client": "--comch-provider",
		"dma-local-copy": "--dma-provider"} {
		o := <-start(t, name, flag, "pigeon")
		if o.err == nil || !strings.Contains(o.output, "pigeon") {
			t.Errorf("%s: %q, error %v", name, o.output, o.err)
		}
	}
}
