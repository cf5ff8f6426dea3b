// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../"

// block is a fenced block of a page with shell commands.
type block struct {
	line int // of its first command
	kind string
	text string
	// first are the commands to run before it, and whyNot is why it is not run.
	first, whyNot string
	inBackground  bool
}

var fence = regexp.MustCompile("^( *)```([a-z]*)$")

// shells are the kinds of blocks with commands.
var shells = map[string]bool{"sh": true, "bash": true, "shell": true, "console": true}

// blocksOf returns the blocks of a page.
func blocksOf(page string) ([]block, error) {
	content, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var blocks []block
	var next block // what comments have said about the block to come
	lines := strings.Split(string(content), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if rest, ok := strings.CutPrefix(line, "<!-- first:"); ok {
			for ; !strings.HasSuffix(rest, "-->"); rest += "\n" + lines[i] {
				if i++; i == len(lines) {
					return nil, fmt.Errorf("%s: a comment does not end", page)
				}
			}
			next.first += strings.TrimSuffix(rest, "-->") + "\n"
			continue
		}
		if rest, ok := strings.CutPrefix(line, "<!-- not run: "); ok {
			next.whyNot, _ = strings.CutSuffix(rest, " -->")
			continue
		}
		if line == "<!-- in the background -->" {
			next.inBackground = true
			continue
		}
		begin := fence.FindStringSubmatch(line)
		if begin == nil {
			if line != "" && next != (block{}) {
				return nil, fmt.Errorf("%s:%d: a comment is about no block of commands", page, i+1)
			}
			continue
		}
		next.line, next.kind = i+2, begin[2]
		for i++; i < len(lines) && lines[i] != begin[1]+"```"; i++ {
			next.text += strings.TrimPrefix(lines[i], begin[1]) + "\n"
		}
		if shells[next.kind] {
			blocks = append(blocks, next)
		} else if next.whyNot != "" || next.first != "" || next.inBackground {
			return nil, fmt.Errorf("%s:%d: a comment is about no block of commands", page, next.line)
		}
		next = block{}
	}
	return blocks, nil
}

// usersPages returns the pages for users. README.md has a test of its own in test/e2e.
func usersPages(t *testing.T) []string {
	t.Helper()
	var pages []string
	for _, pattern := range []string{"docs/*.md", "docs/recipes/*.md", "docs/guides/*.md"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		pages = append(pages, found...)
	}
	return pages
}

// Every block of commands runs, or says why not in a way that a reader could judge.
func TestEveryBlockRunsOrSaysWhyNot(t *testing.T) {
	run, skipped := 0, 0
	for _, page := range usersPages(t) {
		blocks, err := blocksOf(page)
		if err != nil {
			t.Error(err)
		}
		for _, b := range blocks {
			switch {
			case b.whyNot == "":
				run++
			case len(b.whyNot) < len("needs root"):
				t.Errorf("%s:%d: %q is no reason", page, b.line, b.whyNot)
			default:
				skipped++
			}
		}
	}
	t.Logf("%d blocks run, %d do not", run, skipped)
	if run < skipped {
		t.Errorf("%d blocks run, and %d do not", run, skipped)
	}
}
