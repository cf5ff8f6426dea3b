package render

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// checkDrawing returns the number of elements of each kind; the drawing has
// to be well-formed and may not contain what is no number.
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
	var svg bytes.Buffer
	err := writeCharts(&svg, []Chart{{
		Title: "a < b & c", Categories: []string{"1", "2", "3"}, XLabel: "x", YLabel: "y",
		Lines: []Line{{Name: "rising", Values: []float64{1, 20, 300}}, {Name: "with a gap", Values: []float64{5, 0, 7}}},
	}, {Title: "nothing"}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	count := checkDrawing(t, svg.Bytes())
	if count["circle"] != 5 || count["polyline"] != 2 || count["g"] != 2 {
		t.Errorf("elements are %v", count)
	}
	if !strings.Contains(svg.String(), "a &lt; b &amp; c") {
		t.Error("the title is missing")
	}
}

func TestAnyValuesHaveAPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1, math.MaxFloat64/100), 1, 8).Draw(t, "values")
		var svg bytes.Buffer
		chart := Chart{Categories: make([]string, len(values)), Lines: []Line{{Values: values}}}
		if err := writeCharts(&svg, []Chart{chart}, 0); err != nil {
			t.Fatal(err)
		}
		checkDrawing(t, svg.Bytes())
	})
}

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	if err := writeCharts(brokenWriter{}, nil, 1); err == nil {
		t.Error("writing succeeded")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
