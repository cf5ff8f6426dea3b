// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/seedtest"
)

// checkDrawing returns the number of elements of each kind. The drawing must be well-formed XML
// with finite coordinates.
func checkDrawing(t interface{ Fatalf(string, ...any) }, svg []byte) map[string]int {
	if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
		t.Fatalf("there is no place for some value:\n%s", svg)
	}
	count := map[string]int{}
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, svg)
		}
		if element, ok := token.(xml.StartElement); ok {
			count[element.Name.Local]++
		}
	}
}

func TestEveryValueIsDrawn(t *testing.T) {
	marks := func(values ...float64) int {
		var svg bytes.Buffer
		err := writeCharts(&svg, []chart{{
			title: "a < b & c", categories: []string{"1", "2", "3"}, xLabel: "x", yLabel: "y",
			lines: []line{{name: "rising", values: []float64{1, 20, 300}},
				{name: "other", values: values}},
		}, {title: "nothing"}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(svg.String(), "a &lt; b &amp; c") || !strings.Contains(svg.String(),
			">other<") {
			t.Error("the title or the legend is missing")
		}
		return checkDrawing(t, svg.Bytes())["path"]
	}
	if all, gap, end := marks(5, 6, 7), marks(5, 0, 7), marks(5, 6, 7, 8); gap != all-1 ||
		end != all {
		t.Errorf("3 values are drawn as %d paths, 2 as %d, and 4 for 3 categories as %d", all, gap,
			end)
	}
}

func TestAnyValuesHaveAPlace(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1, math.MaxFloat64/100), 1, 8).Draw(t,
			"values")
		var svg bytes.Buffer
		c := chart{categories: make([]string, len(values)), lines: []line{{values: values}}}
		if err := writeCharts(&svg, []chart{c}); err != nil {
			t.Fatal(err)
		}
		checkDrawing(t, svg.Bytes())
	})
}

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	if err := writeCharts(brokenWriter{}, nil); err == nil {
		t.Error("writing succeeded")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestEveryFormOfTheDocumentIsKept(t *testing.T) {
	for _, name := range []string{"suite", "empty"} {
		content, err := os.ReadFile(filepath.Join("../../../internal/benchsuite/testdata",
			name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var d benchsuite.Document
		if err := json.Unmarshal(content, &d); err != nil {
			t.Fatal(err)
		}
		for extension, write := range map[string]func(io.Writer,
			*benchsuite.Document) error{"md": WriteMarkdown, "svg": WriteSVG} {
			var got bytes.Buffer
			if err := write(&got, &d); err != nil {
				t.Fatal(err)
			}
			goldentest.Check(t, filepath.Join("testdata", name+"."+extension), got.Bytes())
		}
	}
}
