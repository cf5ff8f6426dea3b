// SPDX-License-Identifier: Apache-2.0

// Package yamlerror finds the line of a mistake in YAML. The parser often names the line where the
// section around it begins, or none.
package yamlerror

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// maxParsed bounds how many bytes are parsed to find a mistake.
const maxParsed = 2 << 20

var located = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// Locate returns the line of a mistake that has kept content from being parsed, and what is wrong
// there. The line is 0 if it is unknown.
func Locate(content []byte, err error) (line int, text string) {
	match := located.FindStringSubmatch(err.Error())
	if match == nil {
		return 0, err.Error()
	}
	line, _ = strconv.Atoi(match[1]) // 0 without a number
	line, text = max(line, firstWrong(content)), err.Error()[len(match[0]):]
	if isTabbed(content, line) {
		text = "the line is indented with a tab: YAML wants spaces"
	}
	return line, text
}

// isTabbed reports whether the indentation of a line has a tab.
func isTabbed(content []byte, line int) bool {
	lines := bytes.SplitN(content, []byte("\n"), line+1)
	if line < 1 || line > len(lines) {
		return false
	}
	text := lines[line-1]
	return bytes.ContainsRune(text[:len(text)-len(bytes.TrimLeft(text, " \t"))], '\t')
}

// firstWrong returns the number of the first line behind which no beginning of content is YAML, 0
// if it takes too long to find out.
func firstWrong(content []byte) int {
	if isYAML(content) {
		return 0 // and of another shape than expected
	}
	lines := bytes.SplitAfter(content, []byte("\n"))
	length := len(content)
	for parsed, line := 0, len(lines); line > 0; line-- {
		length -= len(lines[line-1])
		if parsed += length; parsed > maxParsed {
			return 0
		}
		if isYAML(content[:length]) {
			return line
		}
	}
	return 0
}

func isYAML(content []byte) bool {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		switch err := decoder.Decode(&yaml.Node{}); {
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			return false
		}
	}
}
