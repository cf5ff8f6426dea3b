// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"strings"
)

// WithCode returns text with one symbolic code in brackets: the one that it has, and otherwise code
// at its end. An error that wraps another one does not add its own code to the text: the code of
// the cause says more about what to do.
func WithCode(text string, code Code) string {
	text = OneCode(text)
	last := text[strings.LastIndexByte(text, '\n')+1:]
	if _, _, _, found := cutCode(last); found {
		return text
	}
	return text + " [" + code.String() + "]"
}

// OneCode returns text without all but one of the symbolic codes in each line. The one that remains
// is that of the cause: the last place has it, and of several codes in a row the first.
func OneCode(text string) string {
	if !strings.Contains(text, " [") {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = oneCode(line)
	}
	return strings.Join(lines, "\n")
}

func oneCode(line string) string {
	var text strings.Builder
	kept, at := "", 0
	for rest := line; ; {
		before, code, after, found := cutCode(rest)
		text.WriteString(before)
		if !found {
			break
		}
		if before != "" || kept == "" {
			kept, at = code, text.Len()
		}
		rest = after
	}
	if kept == "" {
		return line
	}
	all := text.String()
	return all[:at] + kept + all[at:]
}

// Text returns the text of err without symbolic codes in brackets, for people who read it beside
// other text.
func Text(err error) string {
	var text strings.Builder
	for rest := err.Error(); ; {
		before, _, after, found := cutCode(rest)
		text.WriteString(before)
		if !found {
			return text.String()
		}
		rest = after
	}
}

// cutCode returns the first symbolic code in text, with the space before it and the brackets, and
// what is around it.
func cutCode(text string) (before, code, after string, found bool) {
	for from := 0; ; {
		begin := strings.Index(text[from:], " [")
		if begin < 0 {
			return text, "", "", false
		}
		begin += from
		from = begin + len(" [")
		length := strings.IndexByte(text[from:], ']')
		if length < 0 {
			return text, "", "", false
		}
		if end := from + length; isCodeName(text[from:end]) {
			return text[:begin], text[begin : end+1], text[end+1:], true
		}
	}
}

// isCodeName reports whether Code.String returns name for some code.
func isCodeName(name string) bool {
	if number, isUnknown := strings.CutPrefix(name, "CODE_"); isUnknown {
		return number != "" && strings.Trim(number, "0123456789") == ""
	}
	return slices.Contains(codeNames[:], name)
}
