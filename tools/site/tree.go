// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// home is the page with the navigation.
const home = "docs/README.md"

// page is a Markdown file of the repository.
type page struct {
	path   string // in the repository, with slashes
	url    string // in the site, with slashes
	title  string
	source []byte
	root   ast.Node
	// anchors holds the IDs of the headings.
	anchors map[string]bool
	// links holds where the page leads to, in the repository.
	links []link
}

// link is a relative link of a page.
type link struct {
	target string // path in the repository
	anchor string
	line   int
}

// section is a part of the navigation.
type section struct {
	title string
	pages []*page
	// inner are pages that a page of the section lists: those of a folder with a README.md.
	inner []*page
}

// tree holds the pages of the site and how they hang together.
type tree struct {
	directory string
	pages     map[string]*page // by path
	sections  []section
	// files are the other files that pages lead to and the site has, such as schemas and pictures.
	files map[string]bool
	// faults says what is wrong with links and navigation.
	faults []error
}

// load reads all pages below docs/ and those beside it.
func load(directory string) (*tree, error) {
	t := &tree{directory: directory, pages: map[string]*page{}, files: map[string]bool{}}
	paths, err := markdownFiles(directory)
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		source, err := os.ReadFile(filepath.Join(directory, filepath.FromSlash(p)))
		if err != nil {
			return nil, err
		}
		t.pages[p] = parse(p, source)
	}
	if t.pages[home] == nil {
		return nil, fmt.Errorf("%s: %w", home, fs.ErrNotExist)
	}
	for _, p := range paths {
		t.check(t.pages[p])
	}
	t.navigate()
	return t, nil
}

// markdownFiles lists the pages in order: those of docs/, and the ones beside it that have readers
// of their own. README.md is what a reader of the repository sees; the site begins with home.
func markdownFiles(directory string) ([]string, error) {
	paths := []string{"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
	root := os.DirFS(directory)
	err := fs.WalkDir(root, "docs", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(p, ".md") {
			paths = append(paths, p)
		}
		return err
	})
	return paths, err
}

// urlOf returns where a page is in the site.
func urlOf(p string) string {
	p = strings.TrimPrefix(p, "docs/")
	if path.Base(p) == "README.md" {
		return path.Join(path.Dir(p), "index.html")
	}
	return strings.TrimSuffix(p, ".md") + ".html"
}

// check notes what the links of a page lead to, and those that lead nowhere.
func (t *tree) check(p *page) {
	for _, l := range p.links {
		fault := func(what string) {
			t.faults = append(t.faults, fmt.Errorf("%s:%d: link to %s: %s", p.path, l.line,
				l.target, what))
		}
		if to := t.pages[l.target]; to != nil {
			if l.anchor != "" && !to.anchors[l.anchor] {
				fault(fmt.Sprintf("there is no heading #%s", l.anchor))
			}
			continue
		}
		info, err := os.Stat(filepath.Join(t.directory, filepath.FromSlash(l.target)))
		if err != nil {
			fault("there is no such file")
			continue
		}
		if !info.IsDir() && strings.HasPrefix(l.target, "docs/") {
			t.files[l.target] = true
		}
	}
}

// navigate makes the sections of the links on the home page. Each page must be in one, and belongs
// to the last that lists it.
func (t *tree) navigate() {
	listed := map[*page]bool{t.pages[home]: true}
	var sections []section
	for n := t.pages[home].root.FirstChild(); n != nil; n = n.NextSibling() {
		if heading, ok := n.(*ast.Heading); ok && heading.Level == 2 {
			title := string(textOf(heading, t.pages[home].source))
			sections = append(sections, section{title: title})
			continue
		}
		if len(sections) == 0 {
			continue
		}
		current := &sections[len(sections)-1]
		for _, l := range linksOf(n, t.pages[home]) {
			to := t.pages[l.target]
			if to == nil || l.target == home || slices.Contains(current.pages, to) {
				continue
			}
			for i := range sections {
				sections[i].pages = slices.DeleteFunc(sections[i].pages,
					func(p *page) bool { return p == to })
			}
			listed[to] = true
			current.pages = append(current.pages, to)
		}
	}
	t.sections = slices.DeleteFunc(sections, func(s section) bool { return len(s.pages) == 0 })
	for _, p := range t.ordered() {
		if listed[p] {
			continue
		}
		folder := t.pages[path.Join(path.Dir(p.path), "README.md")]
		at := slices.IndexFunc(t.sections, func(s section) bool {
			return folder != nil && slices.Contains(s.pages, folder) && leadsTo(folder, p)
		})
		if at < 0 {
			t.faults = append(t.faults, fmt.Errorf("%s: %s lists no such page", p.path, home))
			continue
		}
		t.sections[at].inner = append(t.sections[at].inner, p)
	}
}

func leadsTo(from, to *page) bool {
	return slices.ContainsFunc(from.links, func(l link) bool { return l.target == to.path })
}

// ordered returns all pages in the order of their paths.
func (t *tree) ordered() []*page {
	var pages []*page
	for _, p := range t.pages {
		pages = append(pages, p)
	}
	slices.SortFunc(pages, func(a, b *page) int { return strings.Compare(a.path, b.path) })
	return pages
}
