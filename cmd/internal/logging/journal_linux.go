// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"syscall"

	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

// journalVariable names the connection to the journal, as DEVICE:INODE in decimal
// (systemd.exec(5)).
const journalVariable = "JOURNAL_STREAM"

// isJournal reports whether w is the connection to the journal. A program whose standard error has
// been redirected still has the variable.
func isJournal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	about, err := file.Stat()
	if err != nil {
		return false
	}
	system, ok := about.Sys().(*syscall.Stat_t)
	return ok && os.Getenv(journalVariable) == strconv.FormatUint(uint64(system.Dev), 10)+":"+
		strconv.FormatUint(system.Ino, 10)
}

// journalPrefix returns what makes the journal store a line with a priority (sd-daemon(3)).
func journalPrefix(level zapcore.Level) string {
	switch {
	case level >= zapcore.ErrorLevel:
		return "<3>"
	case level == zapcore.WarnLevel:
		return "<4>"
	case level == zapcore.InfoLevel:
		return "<6>"
	}
	return "<7>"
}

// journalEncoder prefixes each line of an entry with its priority.
type journalEncoder struct{ zapcore.Encoder }

// Clone returns a copy.
func (j journalEncoder) Clone() zapcore.Encoder { return journalEncoder{j.Encoder.Clone()} }

// EncodeEntry encodes an entry. The journal makes each line of a stack trace a record of its own.
func (j journalEncoder) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer,
	error) {
	encoded, err := j.Encoder.EncodeEntry(entry, fields)
	if err != nil {
		return nil, err
	}
	text := prefixLines(journalPrefix(entry.Level), encoded.Bytes())
	encoded.Reset()
	encoded.AppendBytes(text)
	return encoded, nil
}

func prefixLines(prefix string, text []byte) []byte {
	var prefixed []byte
	for line := range bytes.Lines(text) {
		prefixed = append(append(prefixed, prefix...), line...)
	}
	return prefixed
}

// Errors returns a writer for lines that report errors. It gives them their priority if w is the
// connection to the journal.
func Errors(w io.Writer) io.Writer {
	if !isJournal(w) {
		return w
	}
	return journalErrors{w}
}

// journalErrors writes whole lines.
type journalErrors struct{ journal io.Writer }

// Write prefixes each line.
func (j journalErrors) Write(p []byte) (int, error) {
	if _, err := j.journal.Write(prefixLines(journalPrefix(zapcore.ErrorLevel), p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
