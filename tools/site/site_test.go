// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The links of the documents lead to files and headings that exist, and the home page lists every
// page.
func TestTheDocumentsHangTogether(t *testing.T) {
	tree, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tree.faults...); err != nil {
		t.Error(err)
	}
	if len(tree.pages) < 40 || len(tree.sections) < 5 {
		t.Errorf("%d pages in %d sections", len(tree.pages), len(tree.sections))
	}
}

// repositoryWith makes a repository of a few pages.
func repositoryWith(t *testing.T, pages map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, content := range map[string]string{
		"CHANGELOG.md": "# Changes\n", "CONTRIBUTING.md": "# Contributing\n",
		"SECURITY.md": "# Security\n", "docs/schemas/a.json": "{}\n",
	} {
		if pages[name] == "" {
			pages[name] = content
		}
	}
	for name, content := range pages {
		file := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

const all = "## All\n[](../CHANGELOG.md) [](../CONTRIBUTING.md) [](../SECURITY.md) "

func TestLinksThatLeadNowhereAreFaults(t *testing.T) {
	for link, want := range map[string]string{
		"[x](a.md)": "", "[x](a.md#two-words)": "", "[x](a.md#two-words-1)": "",
		"[x](a.md#code_1)": "", "[x](schemas/a.json)": "", "[x](../docs)": "",
		"[x](https://example.com/none#x)": "", "`[x](none.md)`": "",
		"[x](none.md)":        "docs/README.md:7: link to docs/none.md: there is no such file",
		"[x](a.md#none)":      "docs/README.md:7: link to docs/a.md: there is no heading #none",
		"[x](a.md#Two-Words)": "docs/README.md:7: link to docs/a.md: there is no heading #Two-Words",
		"[x](#none)":          "docs/README.md:7: link to docs/README.md: there is no heading #none",
		"![x](none.svg)":      "docs/README.md:7: link to docs/none.svg: there is no such file",
	} {
		tree, err := load(repositoryWith(t, map[string]string{
			"docs/README.md": "# Home\n" + all + "[](a.md)\n\n\n\n" + link + "\n",
			"docs/a.md":      "# A\n## Two words\n## Two *words*\n### `CODE_1`\n",
		}))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := errors.Join(tree.faults...); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}

func TestAPageThatIsNotListedIsAFault(t *testing.T) {
	pages := map[string]string{
		"docs/README.md":    "# Home\n" + all + "[](in/README.md)\n",
		"docs/in/README.md": "# In\n[](a.md)\n", "docs/in/a.md": "# A\n", "docs/in/b.md": "# B\n",
	}
	tree, err := load(repositoryWith(t, pages))
	if err != nil {
		t.Fatal(err)
	}
	want := "docs/in/b.md: docs/README.md lists no such page"
	if err := errors.Join(tree.faults...); err == nil || err.Error() != want {
		t.Errorf("faults: %v, want %s", err, want)
	}
}

var loaded = regexp.MustCompile(`(?:src|<link[^>]* href)="([^"]*)"`)

func TestTheSiteLoadsNothingFromElsewhere(t *testing.T) {
	output := filepath.Join(t.TempDir(), "site")
	if err := build("../..", output, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	count := 0
	err := filepath.WalkDir(output, func(file string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".html") {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		count++
		page := string(content)
		for _, match := range loaded.FindAllStringSubmatch(page, -1) {
			target := filepath.Join(filepath.Dir(file), filepath.FromSlash(match[1]))
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s loads %s", file, match[1])
			}
		}
		for _, part := range []string{"<main", "Content-Security-Policy", "zc-relay 1.2.3"} {
			if !strings.Contains(page, part) {
				t.Errorf("%s has no %s", file, part)
			}
		}
		if strings.Contains(page, "raw HTML omitted") {
			t.Errorf("%s was made of a page with HTML", file)
		}
		return nil
	})
	if err != nil || count < 40 {
		t.Errorf("%d pages, error %v", count, err)
	}
}

func TestWhatAPageSaysIsEscaped(t *testing.T) {
	directory := repositoryWith(t, map[string]string{
		"docs/README.md": "# Home <b>\n" + all + "\n\n<script>alert(1)</script>\n\n" +
			"```sh\necho '</pre><script>'\n```\n\n```\n</code>\n```\n",
	})
	output := filepath.Join(t.TempDir(), "site")
	if err := build(directory, output, ""); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(output, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(content), "<script") != 1 || !strings.Contains(string(content), "&lt;/pre") ||
		!strings.Contains(string(content), "&lt;/code") {
		t.Errorf("%s", content)
	}
}
