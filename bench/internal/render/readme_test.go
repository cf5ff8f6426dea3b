// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/size"
)

const root = "../../../"

// measured is the document of "measure peers" that the README shows.
const measured = root + "docs/dev/peers.json"

// The marks around the figures in the README.
const (
	figuresBegin = "<!-- figures: written by the test of bench/internal/render -->\n"
	figuresEnd   = "<!-- end of figures -->\n"
)

// The README and the page about measurements show what the document says.
func TestTheReadmeShowsWhatWasMeasured(t *testing.T) {
	content, err := os.ReadFile(measured)
	if err != nil {
		t.Fatal(err)
	}
	var d benchsuite.Document
	if err := json.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	var picture bytes.Buffer
	if err := WriteSVG(&picture, &d); err != nil {
		t.Fatal(err)
	}
	goldentest.Check(t, root+"docs/dev/peers.svg", picture.Bytes())
	readme, err := os.ReadFile(root + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(readme), figuresBegin)
	_, after, ends := strings.Cut(rest, figuresEnd)
	if !begins || !ends {
		t.Fatal("README.md has no marks for the figures")
	}
	goldentest.Check(t, root+"README.md",
		[]byte(before+figuresBegin+figures(&d)+figuresEnd+after))
}

// shown are the rows of the table: what is asked for.
var shown = []struct {
	name     string
	workload benchsuite.Workload // of which the fields count that tell them apart
	quantity benchsuite.Quantity
}{
	{"4 KiB reads, depth 1",
		benchsuite.Workload{Pattern: "randread", BlockSize: 4 << 10, QueueDepth: 1, Queues: 1},
		benchsuite.IOPS},
	{"4 KiB reads, 4 queues of depth 32",
		benchsuite.Workload{Pattern: "randread", BlockSize: 4 << 10, QueueDepth: 32, Queues: 4},
		benchsuite.IOPS},
	{"4 KiB writes, 4 queues of depth 32",
		benchsuite.Workload{Pattern: "randwrite", BlockSize: 4 << 10, QueueDepth: 32, Queues: 4},
		benchsuite.IOPS},
	{"128 KiB reads, depth 32",
		benchsuite.Workload{Pattern: "randread", BlockSize: 128 << 10, QueueDepth: 32, Queues: 1},
		benchsuite.BytesPerSecond},
}

// systems are the columns.
var systems = []struct{ name, title string }{
	{"zc-relay", "zc-relay, Go client"},
	{"fio nbd, zc-relay", "zc-relay, NBD gateway"},
	{"fio nbd, nbdkit memory", "nbdkit"},
	{"fio nbd, qemu-storage-daemon", "qemu-storage-daemon"},
}

// figures makes the table of the README.
func figures(d *benchsuite.Document) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Beside other software on one machine with %d × %s and\nLinux %s, on %s: medians "+
		"of %d runs of %s each (`make bench-peers`).\nThe chain is three processes over shared memory "+
		"and TCP; each of the others is one.\n\n", d.Environment.CPUs, d.Environment.CPUModel,
		d.Environment.Kernel, d.StartedAt.Format("2 January 2006"), d.Method.Repetitions,
		size.FormatDuration(d.Method.Runtime))
	text.WriteString("| |")
	for _, s := range systems {
		fmt.Fprintf(&text, " %s |", s.title)
	}
	text.WriteString("\n|---|--:|--:|--:|--:|\n")
	for _, row := range shown {
		fmt.Fprintf(&text, "| %s |", row.name)
		for _, s := range systems {
			fmt.Fprintf(&text, " %s |", cell(d, s.name, row.workload, row.quantity))
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// cell returns the median of a system, and "–" if the document does not have it.
func cell(
	d *benchsuite.Document, system string, workload benchsuite.Workload,
	quantity benchsuite.Quantity,
) string {
	for i := range d.Cases {
		c := &d.Cases[i]
		w := &c.Workload
		if c.System != system || w.Pattern != workload.Pattern ||
			w.BlockSize != workload.BlockSize || w.QueueDepth != workload.QueueDepth ||
			max(w.Queues, 1) != workload.Queues {
			continue
		}
		value, ok := c.Median(quantity)
		spread := benchsuite.Spread(c.Values(quantity)) * 50
		switch {
		case !ok:
			return "–"
		case quantity == benchsuite.BytesPerSecond:
			return fmt.Sprintf("%.0f MiB/s ± %.0f %%", value/float64(size.MiB), spread)
		default:
			return fmt.Sprintf("%.1f k IOPS ± %.0f %%", value/1000, spread)
		}
	}
	return "–"
}
