// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const docs = "../../../docs/"

func TestEveryCodeIsExplained(t *testing.T) {
	if len(explanations) != status.CodeCount-1 {
		t.Fatalf("%d codes are explained, and there are %d without SUCCESS", len(explanations),
			status.CodeCount-1)
	}
	for i, e := range explanations {
		if e.code != status.Code(i+1) {
			t.Errorf("%v is explained in the place of %v", e.code, status.Code(i+1))
		}
		if e.meaning == "" || len(e.cases) == 0 {
			t.Errorf("%v has no meaning or no cause", e.code)
		}
		for _, page := range e.see {
			name, _, _ := strings.Cut(page, "#")
			if _, err := os.Stat(filepath.Join(docs, name)); err != nil {
				t.Errorf("%v: %v", e.code, err)
			}
		}
	}
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := NewCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

func TestACodeIsFoundByEachOfItsNames(t *testing.T) {
	for _, name := range []string{"NOT_CONNECTED", "not_connected", "[NOT_CONNECTED]",
		"DOCA_ERROR_NOT_CONNECTED", strconv.Itoa(int(status.NotConnected))} {
		text, err := run(t, name)
		if err != nil || !strings.HasPrefix(text, "NOT_CONNECTED (14): ") ||
			!strings.Contains(text, "cause: ") || strings.Contains(text, "`") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	for _, name := range []string{"SUCCESS", "0", "31", "NOPE", ""} {
		if text, err := run(t, name); err == nil {
			t.Errorf("%q is explained:\n%s", name, text)
		}
	}
}

func TestWithoutACodeAllAreListed(t *testing.T) {
	text, err := run(t)
	if err != nil || strings.Count(text, "\n") != len(explanations) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestTheDocumentIsValid(t *testing.T) {
	s := schematest.Read(t, docs+"schemas/explain.schema.json")
	for _, args := range [][]string{{"--output", "json"}, {"EMPTY", "--output", "json"}} {
		text, err := run(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		var document any
		if err := json.Unmarshal([]byte(text), &document); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(document); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}
