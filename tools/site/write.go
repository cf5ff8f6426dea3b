// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"os"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark/ast"
)

//go:embed assets
var assets embed.FS

// layout is a page around its content.
var layout = template.Must(template.ParseFS(assets, "assets/layout.html"))

// view is what layout shows.
type view struct {
	Title, Home, Base, Version string
	Sections                   []viewSection
	Headings                   []viewLink
	Content                    template.HTML
}

type viewSection struct {
	Title   string
	Pages   []viewLink
	Current bool
}

type viewLink struct {
	Title, URL string
	Current    bool
}

// write writes the site into a directory that is empty or missing.
func (t *tree) write(directory, version string) error {
	put := func(name string, content []byte) error {
		file := filepath.Join(directory, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, content, 0o644)
	}
	for _, p := range t.ordered() {
		v := t.view(p, version)
		var content, out bytes.Buffer
		if err := t.render(&content, p); err != nil {
			return err
		}
		v.Content = template.HTML(content.String()) // the renderer has escaped it
		if err := layout.Execute(&out, v); err != nil {
			return err
		}
		if err := put(p.url, out.Bytes()); err != nil {
			return err
		}
	}
	for file := range t.files {
		content, err := os.ReadFile(filepath.Join(t.directory, filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		if err := put(strings.TrimPrefix(file, "docs/"), content); err != nil {
			return err
		}
	}
	css, err := assets.ReadFile("assets/site.css")
	if err != nil {
		return err
	}
	style := bytes.NewBuffer(css)
	if err := writeCodeStyles(style); err != nil {
		return err
	}
	script, err := assets.ReadFile("assets/site.js")
	if err != nil {
		return err
	}
	index, err := t.index()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"site.css": style.Bytes(), "site.js": script, "search.js": index,
	} {
		if err := put(name, content); err != nil {
			return err
		}
	}
	return nil
}

// view returns what surrounds a page: the navigation, and the headings of the page.
func (t *tree) view(p *page, version string) view {
	v := view{Title: p.title, Version: version, Home: relative(p.url, "index.html"),
		Base: strings.Repeat("../", strings.Count(p.url, "/"))}
	for _, s := range t.sections {
		made := viewSection{Title: s.title}
		for _, to := range s.pages {
			current := to == p
			made.Current = made.Current || current
			made.Pages = append(made.Pages, viewLink{to.title, relative(p.url, to.url), current})
		}
		v.Sections = append(v.Sections, made)
	}
	for n := p.root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level == 2 {
			v.Headings = append(v.Headings,
				viewLink{string(textOf(h, p.source)), "#" + idOf(h), false})
		}
	}
	return v
}

func idOf(h *ast.Heading) string {
	id, _ := h.AttributeString("id")
	return string(id.([]byte))
}

// entry is what can be found: a page down to its first heading, or from one heading to the next.
type entry struct {
	URL     string `json:"u"`
	Page    string `json:"p"`
	Heading string `json:"h"`
	Section string `json:"s"`
	Text    string `json:"t"`
}

// index returns the script with all that can be found. A script, unlike JSON, can also be loaded by
// a page that was opened as a file.
func (t *tree) index() ([]byte, error) {
	entries := entriesOf(t.pages[home], "Start")
	for _, s := range t.sections {
		for _, p := range append(s.pages, s.inner...) {
			entries = append(entries, entriesOf(p, s.title)...)
		}
	}
	content, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	return append(append([]byte("window.searchIndex="), content...), ";\n"...), nil
}

func entriesOf(p *page, section string) []entry {
	entries := []entry{{URL: p.url, Page: p.title, Section: section}}
	for n := p.root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			if h.Level > 1 {
				entries = append(entries, entry{URL: p.url + "#" + idOf(h), Page: p.title,
					Heading: string(textOf(h, p.source)), Section: section})
			}
			continue
		}
		last := &entries[len(entries)-1]
		last.Text += string(textOf(n, p.source)) + " "
	}
	return entries
}
