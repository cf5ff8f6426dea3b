package render

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/goldentest"
)

func TestEveryFormOfTheDocumentIsKept(t *testing.T) {
	for _, name := range []string{"suite", "empty"} {
		content, err := os.ReadFile(filepath.Join("../../../internal/benchsuite/testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var d benchsuite.Document
		if err := json.Unmarshal(content, &d); err != nil {
			t.Fatal(err)
		}
		for extension, write := range map[string]func(io.Writer, *benchsuite.Document) error{"md": WriteMarkdown, "svg": WriteSVG} {
			var got bytes.Buffer
			if err := write(&got, &d); err != nil {
				t.Fatal(err)
			}
			goldentest.Check(t, filepath.Join("testdata", name+"."+extension), got.Bytes())
		}
	}
}
