// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// sweepDocument checks the document of a sweep, with those of its runs.
func sweepDocument(t *testing.T, o outcome) (d bench.Sweep) {
	t.Helper()
	checkDocument(t, "bench-sweep", o)
	var raw struct{ Runs []json.RawMessage }
	if err := json.Unmarshal([]byte(o.stdout), &raw); err != nil {
		t.Fatal(err)
	}
	for _, run := range raw.Runs {
		checkDocument(t, "bench-result", outcome{stdout: string(run)})
	}
	if err := json.Unmarshal([]byte(o.stdout), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestASweepRunsEveryCombination(t *testing.T) {
	picture, table := filepath.Join(t.TempDir(), "sweep.svg"), filepath.Join(t.TempDir(), "sweep.csv")
	call := "bench --rw randread --warmup 0s --runtime 10ms --queues 1 " +
		"--sweep queue-depth=1,4 --sweep block-size=4k,8KiB --picture " + picture +
		" --csv " + table
	d := sweepDocument(t, newRelay().mustCall(t, call+" -o json"))
	type point struct {
		depth     int
		blockSize uint32
	}
	var ran []point
	for _, r := range d.Runs {
		ran = append(ran, point{r.Parameters.QueueDepth, r.Parameters.BlockSize})
		if r.Result.Operations == 0 || r.Parameters.Queues != 1 {
			t.Errorf("a run of %d queues completed %d operations", r.Parameters.Queues,
				r.Result.Operations)
		}
	}
	if want := []point{{1, 4096}, {1, 8192}, {4, 4096}, {4, 8192}}; !slices.Equal(ran, want) {
		t.Errorf("ran %v, want %v", ran, want)
	}
	checkPicture(t, picture, "randread 4KiB, 1 queue", "randread 8KiB, 1 queue", "queue depth")
	first := d.Runs[0]
	checkPicture(t, picture, "initiator bench: randread, 100 % reads, for 10.0ms each",
		fmt.Sprintf("volume %s of %s, channel %s, started %s", first.Volume.Name,
			size.FormatBytes(first.Volume.Size), first.Connection.Channel,
			first.StartedAt.Format(time.RFC3339)))
	checkTable(t, table, d.Runs)
	if o := newRelay().mustCall(t, call); strings.Count(o.stdout, "8KiB") != 2 {
		t.Errorf("the table is\n%s", o.stdout)
	}
}

// readTable reads a CSV file, which has a row for each of that many runs, and one of names.
func readTable(t *testing.T, path string, runs int) [][]string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// ReadAll also checks that all rows are equally long.
	rows, err := csv.NewReader(bytes.NewReader(content)).ReadAll()
	if err != nil || len(rows) != 1+runs {
		t.Fatalf("the table has rows %v, error %v", rows, err)
	}
	return rows
}

// checkTable checks that a CSV file has a row for each run.
func checkTable(t *testing.T, path string, runs []*bench.Report) {
	t.Helper()
	rows := readTable(t, path, len(runs))
	for i, r := range runs {
		value := make(map[string]string)
		for column, name := range rows[0] {
			value[name] = rows[1+i][column]
		}
		for name, want := range map[string]any{"block_size": r.Parameters.BlockSize,
			"queue_depth": r.Parameters.QueueDepth, "iops": r.Result.IOPS,
			"operations": r.Result.Operations, "p99_9_ns": r.Result.LatencyNs.P999} {
			if value[name] != fmt.Sprint(want) {
				t.Errorf("row %d: %s is %q, want %v", i, name, value[name], want)
			}
		}
	}
}

// checkPicture checks that a file is well-formed XML and has the texts.
func checkPicture(t *testing.T, path string, texts ...string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := xml.NewDecoder(strings.NewReader(string(content))); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
	for _, text := range texts {
		if !strings.Contains(string(content), ">"+text+"<") {
			t.Errorf("the picture lacks %q:\n%s", text, content)
		}
	}
}

func TestASweepEndsAtTheFirstFailure(t *testing.T) {
	r := newRelay()
	r.openError = os.ErrPermission
	o := r.call(context.Background(), "",
		"bench --rw read --sweep queue-depth=1,2 -o json")
	if d := sweepDocument(t, o); o.code != program.ExitConnect || d.Error == nil ||
		len(d.Runs) != 0 {
		t.Errorf("exit code %d: %s", o.code, o.stdout)
	}
}

func TestTheTableOfASweepHasWhatWasMeasuredBeforeAFailure(t *testing.T) {
	table := filepath.Join(t.TempDir(), "sweep.csv")
	r := newRelay()
	r.prepare = func(*session) {
		if len(r.configs) == 2 {
			r.closeErr = status.IOFailed
		}
	}
	call := "bench --rw read --warmup 0s --runtime 10ms --sweep queue-depth=1,2,4 --csv " + table
	if o := r.call(t.Context(), "", call); o.code != program.ExitFailure {
		t.Errorf("exit code %d: %s", o.code, o.stdout)
	}
	newRelay().mustCall(t, call+" --dry-run") // which writes nothing
	rows := readTable(t, table, 2)
	complete := slices.Index(rows[0], "complete")
	if rows[1][complete] != "true" || rows[2][complete] != "false" {
		t.Errorf("the table is %v", rows)
	}
}

func TestSweepsThatCannotRunAreRefused(t *testing.T) {
	for _, line := range []string{"--sweep depth=1", "--sweep queue-depth", "--sweep queues=1,,2",
		"--sweep queues=0", "--sweep queues=1 --sweep queues=2", "--sweep block-size=1x",
		"--sweep queues=1 --cpu 0", "--sweep block-size=4k --blocks-per-io 1",
		"--sweep queues=1 --json-stream", "--picture x.svg", "--csv x.csv",
		"--sweep queues=" + strings.Repeat("1,", 2000) + "1"} {
		if o := newRelay().call(context.Background(), "", "bench --rw read --dry-run "+
			line); o.code != program.ExitUsage {
			t.Errorf("%.60s: exit code %d: %s", line, o.code, o.stdout)
		}
	}
	o := newRelay().mustCall(t, "bench --rw read --dry-run --sweep queues=1,2")
	if !strings.Contains(o.stdout, "nothing was run") {
		t.Errorf("a dry run prints %s", o.stdout)
	}
}
