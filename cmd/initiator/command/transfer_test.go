// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestPutAndGetMoveFilesAndStreams(t *testing.T) {
	r, dir := newRelay(), t.TempDir()
	original, copied := filepath.Join(dir, "original"), filepath.Join(dir, "copy")
	content := bytes.Repeat([]byte("content"), 10_000)
	if err := os.WriteFile(original, content, 0o600); err != nil {
		t.Fatal(err)
	}
	o := r.mustCall(t, "put "+original+" --offset 12345 --queues 3")
	if o.stdout != "" || !strings.Contains(o.stderr, "70000 bytes") {
		t.Errorf("standard output %q, standard error %q", o.stdout, o.stderr)
	}
	if !bytes.Equal(r.data[12345:][:len(content)], content) {
		t.Error("the volume does not hold the file")
	}
	r.mustCall(t, "get "+copied+" --offset 12345 --length 70000 --queues 2")
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the copy differs, error %v", err)
	}
	if o := r.mustCall(t, "get - --offset 12345 --length 70000"); o.stdout != string(content) {
		t.Error("what was streamed differs")
	}
	if o := r.call(context.Background(), "streamed",
		"put - --offset 1"); o.code != program.ExitOK || string(r.data[1:9]) != "streamed" {
		t.Errorf("exit code %d, volume %q: %s", o.code, r.data[1:9], o.stderr)
	}
	r.mustCall(t, "get "+copied)
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, r.data) {
		t.Errorf("the copy of the whole volume differs, error %v", err)
	}
	r.mustCall(t, "get "+copied+" --length 0")
	if got, err := os.ReadFile(copied); err != nil || len(got) != 0 {
		t.Errorf("nothing was asked for and %d bytes came, error %v", len(got), err)
	}
}

// onlyFile fails unless dir holds nothing but a file with the given content.
func onlyFile(t *testing.T, path, content string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %d entries, error %v", len(entries), err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("the file holds %q, error %v", got, err)
	}
}

func TestAGetThatFailsLeavesTheFileAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("precious"), 0o640); err != nil {
		t.Fatal(err)
	}
	r := newRelay()
	r.prepare = func(v *session) {
		v.Intercept = func(q *client.Request) status.Code {
			if q.Offset > testSize/2 {
				return status.IOFailed
			}
			return v.Apply(q)
		}
	}
	if o := r.call(context.Background(), "", "get "+path); o.code != program.ExitFailure ||
		!strings.Contains(o.stderr, "IO_FAILED") {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
	onlyFile(t, path, "precious")
}

func TestAGetKeepsModeAndLinkOfTheFileItReplaces(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	r := newRelay()
	r.mustCall(t, "get "+link+" --length 3")
	if target, err := os.Readlink(link); err != nil || target != "file" {
		t.Errorf("the link points to %q, error %v", target, err)
	}
	about, err := os.Stat(path)
	if err != nil || about.Mode().Perm() != 0o640 || about.Size() != 3 {
		t.Errorf("the file is %v, error %v", about, err)
	}
}

func TestAGetToADeviceWritesItInPlace(t *testing.T) {
	r := newRelay()
	r.mustCall(t, "get /dev/null --queues 2")
	if about, err := os.Stat("/dev/null"); err != nil || about.Mode().IsRegular() {
		t.Errorf("/dev/null is %v, error %v", about, err)
	}
}

func TestAPutOfTooLargeAFileChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, testSize), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRelay()
	before := bytes.Clone(r.data)
	o := r.call(context.Background(), "", "put "+path+" --offset 1")
	if o.code != program.ExitUsage || !bytes.Equal(r.data, before) || !strings.Contains(o.stderr,
		"room for 4194303") {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
}

func TestAPutFromASilentPipeCanBeInterrupted(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	source, end := interruptible(ctx, reader)
	cancel()
	if n, err := source.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, error %v", n, err)
	}
	end()
	if err := writer.Close(); err != nil { // lets the copier end
		t.Fatal(err)
	}
}

func TestTransfersReportAsJSON(t *testing.T) {
	r, path := newRelay(), filepath.Join(t.TempDir(), "copy")
	o := r.mustCall(t, "get "+path+" --offset 12345 --length 70000 -o json")
	checkDocument(t, "transfer", o)
	var d transferReport
	if err := json.Unmarshal([]byte(o.stdout), &d); err != nil || d.Operation != "get" ||
		d.File != path || d.Offset != 12345 || d.Bytes != 70000 || d.BytesPerSecond == 0 ||
		d.DurationNs <= 0 || d.Error != nil {
		t.Errorf("the document is %s, error %v", o.stdout, err)
	}
	checkDocument(t, "transfer", r.mustCall(t, "put "+path+" -o json"))
	o = r.call(context.Background(), "", "put "+path+" --offset 5MiB -o json")
	checkDocument(t, "transfer", o)
	if err := json.Unmarshal([]byte(o.stdout), &d); err != nil || d.Error == nil ||
		d.Error.Code != "INVALID_VALUE" || o.code != program.ExitUsage {
		t.Errorf("a failure: %d %s", o.code, o.stdout)
	}
	if o := r.call(context.Background(), "", "get - -o json"); o.code != program.ExitUsage ||
		o.stdout != "" {
		t.Errorf("both on standard output: %d %s", o.code, o.stdout)
	}
}

func TestATransferReportsReopenings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy")
	for _, line := range []string{"get " + path, "put " + path} {
		o := newRelay().mustCall(t, line+" --reconnect -o json")
		checkDocument(t, "transfer", o)
		var d transferReport
		if err := json.Unmarshal([]byte(o.stdout), &d); err != nil || d.Reconnections == nil ||
			d.Reconnections.Count != 2 || d.Reconnections.LostWrites != 3 {
			t.Errorf("%s: the document is %s, error %v", line, o.stdout, err)
		}
		if o = newRelay().mustCall(t, line+" --reconnect"); !strings.Contains(o.stderr,
			"reconnections      2, outages of") {
			t.Errorf("%s: standard error is %q", line, o.stderr)
		}
		if o = newRelay().mustCall(t, line+" -o json"); strings.Contains(o.stdout+o.stderr,
			"reconnections") {
			t.Errorf("%s without --reconnect: %s%s", line, o.stdout, o.stderr)
		}
	}
}
