//go:build cgo

package libdoca_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// dma-copy --compat, as the DPU, copies files from and to a host in the shape of DOCA's DMA Copy
// application.
func TestDMACopyWithAHostOfTheApplication(t *testing.T) {
	t.Parallel()
	program := testkit.Plain.Program(t, "dma-copy")
	eachToolchain(t, func(t *testing.T, c *toolchain) {
		executable := c.compile(t, "dma_copy_host")
		for _, test := range []string{"sends", "receives"} {
			t.Run(test, func(t *testing.T) {
				t.Parallel()
				copyFile(t, program, executable, test)
			})
		}
	})
}

func copyFile(t *testing.T, program, executable, test string) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	directory := t.TempDir()
	names := map[string]string{"sends": filepath.Join(directory, "host"),
		"receives": filepath.Join(directory, "dpu")}
	content := make([]byte, 5<<20+123)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	if err := os.WriteFile(names[test], content, 0o600); err != nil {
		t.Fatal(err)
	}
	comchDirectory := filepath.Join(directory, "comch")
	var outputs [2]bytes.Buffer
	dpu := exec.CommandContext(ctx, program, "-d", "03:00.0", "-r", "b1:00.0", "--compat",
		"--emulated-dir", comchDirectory, "-f", names["receives"])
	host := exec.CommandContext(ctx, executable, "host", test)
	host.Env = append(environment(t, "{role: host, directory: "+comchDirectory+"}"),
		"FILE="+names["sends"])
	for i, command := range []*exec.Cmd{dpu, host} {
		command.Stdout, command.Stderr = &outputs[i], &outputs[i]
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []*exec.Cmd{host, dpu} {
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", filepath.Base(command.Path), err)
			cancel()
		}
	}
	t.Logf("dma-copy: %s\nthe host: %s", outputs[0].String(), outputs[1].String())
	checkMisuse(t, "the host", outputs[1].String())
	for _, name := range names {
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s has %d bytes, %v; the contents differ", name, len(got), err)
		}
	}
}
