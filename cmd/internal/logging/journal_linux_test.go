// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
)

// streamOf returns the value of JOURNAL_STREAM that names a file.
func streamOf(t *testing.T, file *os.File) string {
	t.Helper()
	var about syscall.Stat_t
	if err := syscall.Fstat(int(file.Fd()), &about); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", about.Dev, about.Ino)
}

func TestTheJournalIsTheStreamThatTheEnvironmentNames(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for stream, want := range map[string]bool{
		streamOf(t, writer): true, streamOf(t, file): false, "": false, "8": false, "8:": false,
		streamOf(t, writer) + "0": false, "none:at all": false,
	} {
		t.Setenv(journalVariable, stream)
		if isJournal(writer) != want {
			t.Errorf("with %q, a pipe is the journal: %v", stream, !want)
		}
	}
	t.Setenv(journalVariable, streamOf(t, file))
	if !isJournal(file) || isJournal(&bytes.Buffer{}) {
		t.Error("a file is not the journal, or a buffer is")
	}
	if _, err := fmt.Fprintln(Errors(file), "one\ntwo"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(file.Name()); string(text) != "<3>one\n<3>two\n" || err != nil {
		t.Errorf("errors arrive as %q, %v", text, err)
	}
}

func TestLinesForTheJournalHaveAPriority(t *testing.T) {
	for format, wants := range map[string][]string{
		"console": {"<7>DEBUG\tprog\td", "<6>INFO\tprog\ti", "<4>WARN\tprog\tw\t{\"n\": 1}",
			"<3>ERROR\tprog\te", "<3>e2"},
		"json": {`<7>{"level":"debug","ts":`, `<6>{"level":"info","ts":`,
			`<4>{"level":"warn","ts":`, `<3>{"level":"error","ts":`},
	} {
		o := options(t, "-l", "debug", "--log-format", format)
		o.isJournal = true
		var out bytes.Buffer
		log, _, err := newTo(&out, "prog", o)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("d")
		log.Info("i")
		log.With(zap.Int("n", 1)).Warn("w")
		log.Error("e\ne2")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != len(wants) {
			t.Fatalf("%s: logged %q", format, lines)
		}
		for i, line := range lines {
			isWhole := format == "json" && json.Valid([]byte(line[len("<n>"):]))
			if line != wants[i] && (!isWhole || !strings.HasPrefix(line, wants[i])) {
				t.Errorf("%s: the line is %q, want %q", format, line, wants[i])
			}
		}
	}
}
