// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load returns the configuration that a command line results in.
func load(t *testing.T, line string) (*config.Source[*config.Target], *config.Target, error) {
	t.Helper()
	s, _ := newSource()
	f := pflag.NewFlagSet("target", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	s.AddFlags(f)
	if err := f.Parse(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	c, err := s.Load()
	return s, c, err
}

// contentFile writes a file with a header, unless the block size is 0, and content.
func contentFile(t *testing.T, name string, blockSize, blocks uint32, content []byte) string {
	t.Helper()
	var file []byte
	if blockSize > 0 {
		file = binary.BigEndian.AppendUint64(nil, sbcMagic)
		file = binary.BigEndian.AppendUint32(file, blockSize)
		file = binary.BigEndian.AppendUint32(file, blocks)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, append(file, content...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsOfTheOriginalDescribeOneVolume(t *testing.T) {
	sbc := contentFile(t, "disk.sbc", 512, 3, make([]byte, 3*512))
	raw := contentFile(t, "disk.bin", 0, 0, make([]byte, 2*4096))
	for line, want := range map[string]config.Volume{
		"-d 03:00.0 --listen-port 12345 --cpu 0":   {Backend: "memory:524288", BlockSize: 4096},
		"--block-count 8 --block-size 512":         {Backend: "memory:4096", BlockSize: 512},
		"--binary-content " + sbc:                  {Backend: "memory:1536", BlockSize: 512},
		"--block-count 2 --binary-content " + raw:  {Backend: "memory:8192", BlockSize: 4096},
		"--block-size 4k --device mlx5_0":          {Backend: "memory:524288", BlockSize: 4096},
		"-d x --block-count 1 --control-timeout 5": {Backend: "memory:4096", BlockSize: 4096},
	} {
		want.Name = argp.VolumeName
		s, c, err := load(t, line)
		if err != nil || len(c.Volumes) != 1 || !c.Volumes[0].Equal(&want) ||
			c.Listen.Address.String() != "0.0.0.0" {
			t.Errorf("%s: %+v, error %v", line, c, err)
			continue
		}
		again, err := s.Load() // as a reload does
		if err != nil || !again.Volumes[0].Equal(&want) {
			t.Errorf("%s: a reload finds %+v, error %v", line, again, err)
		}
	}
	_, c, err := load(t, "-d 03:00.0 --listen-address 127.0.0.2 --listen-port 12345 --cpu 1")
	if err != nil || c.Listen.Address.String() != "127.0.0.2" || c.Listen.Port != 12345 ||
		c.RDMA.Device != "" || len(c.Workers.CPUs) != 1 {
		t.Errorf("%+v, error %v", c, err)
	}
}

func TestWithAVolumeTheOriginalsFlagsChangeNothingElse(t *testing.T) {
	_, c, err := load(t, "-d mlx5_0 --rdma-provider verbs --volume disk=memory:1MiB")
	if err != nil || len(c.Volumes) != 1 || c.Volumes[0].Name != "disk" ||
		!c.Listen.Address.IsLoopback() || c.RDMA.Device != "mlx5_0" {
		t.Errorf("%+v, error %v", c, err)
	}
	if _, c, err = load(t, "-d a --rdma-device b --rdma-provider verbs --volume disk=memory:1MiB"); err != nil ||
		c.RDMA.Device != "b" {
		t.Errorf("two devices: %+v, error %v", c, err)
	}
	if _, _, err = load(t, "--rdma-device b --volume disk=memory:1MiB"); err == nil ||
		!strings.Contains(err.Error(), "is for the providers verbs and doca") {
		t.Errorf("a device without a provider that uses it: error %v", err)
	}
}

func TestWrongFlagsOfTheOriginalAreUsageErrors(t *testing.T) {
	huge := contentFile(t, "huge.sbc", 1<<31, 1<<31, nil)
	odd := contentFile(t, "odd.sbc", 1000, 1, make([]byte, 1000))
	empty := contentFile(t, "empty.sbc", 512, 0, nil)
	headless := contentFile(t, "headless.sbc", 0, 0, make([]byte, 4096))
	for line, want := range map[string]string{
		"--block-count 0":                                           "--block-count 0 is no volume",
		"--volume a=memory:1MiB --block-count 1":                    "without --config and --volume",
		"--config /no/such/file --binary-content /x":                "without --config and --volume",
		"--block-size 1000 --block-count 1":                         "",
		"--binary-content " + huge:                                  "0 bytes of content",
		"--binary-content " + odd:                                   "power of two",
		"--binary-content " + empty:                                 "",
		"--binary-content " + headless:                              "does not begin like",
		"--binary-content /no/such/file":                            "no such file",
		"--binary-content /dev/zero":                                "is not a file",
		"--block-count 3 --block-size 4096 --binary-content " + odd: "",
	} {
		if _, c, err := load(t, line); program.ExitCode(err) != program.ExitUsage ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, error %v", line, c, err)
		}
	}
}

func TestDoctorChecksWhatTheTargetWouldUse(t *testing.T) {
	for line, c := range map[string]struct {
		code int
		text []string
	}{
		"--config=": {program.ExitOK, []string{"127.0.0.1:7470 is"}},
		"-d 03:00.0 --listen-port 0 --block-count 8": {program.ExitOK,
			[]string{"need up to 32KiB", "flags and variables", "auto at 0.0.0.0"}},
		"--volume disk=file:/no/such/file": {program.ExitFailure,
			[]string{"fail  volumes", "does not exist"}},
		"--listen-address 192.0.2.1 --volume a=memory:1MiB": {program.ExitFailure,
			[]string{"cannot listen on 192.0.2.1:7470", "auto at 192.0.2.1"}},
		"--config /no/such/file": {program.ExitUsage, []string{"/no/such/file"}},
	} {
		var out bytes.Buffer
		root := newCommand()
		root.SetOut(&out)
		root.SetErr(&out)
		code := program.Run(t.Context(), root, append([]string{"doctor"},
			strings.Fields(line)...))
		for _, want := range c.text {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s does not say %q:\n%s", line, want, out.String())
			}
		}
		if code != c.code {
			t.Errorf("%s: exit code %d\n%s", line, code, out.String())
		}
	}
}

func TestTheVolumeBeginsWithTheBinaryContent(t *testing.T) {
	const blocks, blockSize = 4999, 512 // not a multiple of what is written at a time
	content := make([]byte, blocks*blockSize)
	for i := range content {
		content[i] = byte(i * 31 >> 4)
	}
	for _, path := range []string{
		contentFile(t, "disk.sbc", blockSize, blocks, content),
		contentFile(t, "disk.bin", 0, 0, content),
	} {
		s, c, err := load(t, "--block-count 4999 --block-size 512 --binary-content "+path)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := volume.ParseSpec(c.Volumes[0].Name+"="+c.Volumes[0].Backend,
			c.Volumes[0].BlockSize)
		if err != nil {
			t.Fatal(err)
		}
		v, err := volume.Open(spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Translator.(*docaFlags).fill(t.Context(), v); err != nil ||
			string(v.Memory().Bytes()) != string(content) {
			t.Errorf("%s: the content differs, error %v", path, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Translator.(*docaFlags).fill(ended, v); err == nil {
			t.Error("SIGTERM does not end the filling")
		}
		if err := os.Truncate(path, 1000); err != nil {
			t.Fatal(err)
		}
		if err := s.Translator.(*docaFlags).fill(t.Context(), v); err == nil {
			t.Error("a file that has become shorter is no error")
		}
		if err := v.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
