// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// interruption makes requests from an offset on fail while it is on, and counts the bytes of the
// others.
type interruption struct {
	from  uint64
	off   bool
	moved atomic.Uint64
	uuid  byte
}

func (i *interruption) prepare(v *session) {
	v.Volume.Info.UUID[0] = i.uuid
	i.moved.Store(0)
	v.Intercept = func(r *client.Request) status.Code {
		if !i.off && r.Offset >= i.from {
			return status.IOFailed
		}
		i.moved.Add(uint64(r.Length))
		return v.Apply(r)
	}
}

func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); err == nil {
		t.Errorf("%s is still there", path)
	}
}

func TestAnInterruptedGetGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(path, []byte("former"), 0o640); err != nil {
		t.Fatal(err)
	}
	r, stop := newRelay(), &interruption{from: testSize / 2}
	r.prepare = stop.prepare
	const line = " --resume --buffer-size 64KiB --offset 5 -o json"
	if o := r.call(context.Background(), "", "get "+path+line); o.code != program.ExitFailure ||
		!strings.Contains(o.stderr, "the same command goes on from there") {
		t.Fatalf("exit code %d: %s", o.code, o.stderr)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "former" {
		t.Errorf("meanwhile the file holds %q, error %v", got, err)
	}
	stop.off = true
	o := r.mustCall(t, "get "+path+line)
	checkDocument(t, "transfer", o)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, r.data[5:]) {
		t.Errorf("the copy differs, error %v", err)
	}
	if moved := stop.moved.Load(); moved > testSize/2+1<<20 ||
		!strings.Contains(o.stdout, `"resumed_bytes": `) {
		t.Errorf("%d bytes were moved again: %s", moved, o.stdout)
	}
	if about, err := os.Stat(path); err != nil || about.Mode().Perm() != 0o640 {
		t.Errorf("the file is %v, error %v", about, err)
	}
	absent(t, path+stateSuffix)
	absent(t, path+output.PartialSuffix)
}

func TestAnInterruptedPutGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("content!"), testSize/16)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	r, stop := newRelay(), &interruption{from: testSize / 4}
	r.prepare = stop.prepare
	line := "put " + path + " --resume --buffer-size 64KiB --offset 5"
	if o := r.call(context.Background(), "", line); o.code != program.ExitFailure {
		t.Fatalf("exit code %d: %s", o.code, o.stderr)
	}
	stop.off = true
	o := r.mustCall(t, line)
	if !bytes.Equal(r.data[5:][:len(content)], content) {
		t.Error("the volume does not hold the file")
	}
	if moved := stop.moved.Load(); moved > testSize/4+1<<20 ||
		!strings.Contains(o.stderr, "of an earlier call") {
		t.Errorf("%d bytes were moved again: %s", moved, o.stderr)
	}
	absent(t, path+stateSuffix)
	r.mustCall(t, line) // from the beginning
	if moved := stop.moved.Load(); moved < uint64(len(content))-8192 {
		t.Errorf("of a complete put, %d bytes were moved again", moved)
	}
}

func TestAnotherTransferIsNotResumed(t *testing.T) {
	const get, put = "get FILE --resume", "put FILE --resume"
	for name, c := range map[string]struct {
		first, second string
		change        func(t *testing.T, r *relay, stop *interruption, file string)
		want          string
	}{
		"another volume": {get, get, func(_ *testing.T, _ *relay, stop *interruption, _ string) {
			stop.uuid++
		}, "and volume \"test\" is"},
		"a changed volume": {get, get, func(_ *testing.T, r *relay, _ *interruption, _ string) {
			clear(r.data[:testSize/4])
		}, "file and volume differ in the"},
		"a changed copy": {get, get, func(t *testing.T, _ *relay, _ *interruption, file string) {
			if err := os.Truncate(file+output.PartialSuffix, 100); err != nil {
				t.Fatal(err)
			}
		}, "has become shorter"},
		"a copy without its state": {get, get, func(t *testing.T, _ *relay, _ *interruption,
			file string) {
			if err := os.Remove(file + stateSuffix); err != nil {
				t.Fatal(err)
			}
		}, "which says what it is"},
		"a damaged state": {get, get, func(t *testing.T, _ *relay, _ *interruption, file string) {
			if err := os.WriteFile(file+stateSuffix, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is not the state of a transfer"},
		"another range": {get, get + " --offset 4096", nil, "at offset 0, and this is"},
		"the other way": {get, put, nil, "what was interrupted was get"},
		"a changed file": {put, put, func(t *testing.T, _ *relay, _ *interruption, file string) {
			content, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, "has changed since"},
		"a volume changed under put": {put, put, func(_ *testing.T, r *relay, _ *interruption,
			_ string) {
			r.data[testSize/2-1]++
		}, "file and volume differ in the"},
	} {
		file := filepath.Join(t.TempDir(), "file")
		r, stop := newRelay(), &interruption{from: testSize / 2}
		if err := os.WriteFile(file, bytes.Repeat([]byte("file"), testSize/4), 0o600); err != nil {
			t.Fatal(err)
		}
		r.prepare = stop.prepare
		line := strings.NewReplacer("FILE", file)
		if o := r.call(context.Background(), "", line.Replace(c.first)); o.code !=
			program.ExitFailure {
			t.Fatalf("%s: exit code %d: %s", name, o.code, o.stderr)
		}
		if c.change != nil {
			c.change(t, r, stop, file)
		}
		stop.off = true
		before := bytes.Clone(r.data)
		o := r.call(context.Background(), "", line.Replace(c.second))
		if o.code != program.ExitUsage || !strings.Contains(o.stderr, c.want) ||
			!bytes.Equal(r.data, before) || stop.moved.Load() != 0 {
			t.Errorf("%s: exit code %d, %d bytes moved: %s", name, o.code, stop.moved.Load(),
				o.stderr)
		}
	}
}

func TestOnlyOneTransferOfAFileResumes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	other, err := output.Continue(file)
	if err != nil {
		t.Fatal(err)
	}
	o := newRelay().call(context.Background(), "", "get "+file+" --resume")
	if o.code != program.ExitUsage || !strings.Contains(o.stderr, "in use by another transfer") {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
	if err := other.Finish(os.ErrInvalid); err == nil {
		t.Error("Finish did not return the error")
	}
	for _, line := range []string{"get - --resume", "put - --resume", "put /dev/zero --resume",
		"get /dev/null --resume"} {
		if o := newRelay().call(context.Background(), "", line); o.code != program.ExitUsage {
			t.Errorf("%s: exit code %d: %s", line, o.code, o.stderr)
		}
	}
}
