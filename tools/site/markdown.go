// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode"

	"github.com/alecthomas/chroma/v2"
	chromahtml "github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/alecthomas/chroma/v2/styles"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// markdown is GitHub's Markdown, without HTML: a comment is for those who read the source.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.Linkify, extension.Strikethrough, extension.TaskList,
		// The policy of the pages forbids styles of elements.
		extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(code{}, 1))),
)

// parse reads a page, and gives its headings the IDs that GitHub gives them.
func parse(p string, source []byte) *page {
	made := &page{path: p, url: urlOf(p), source: source, anchors: map[string]bool{}}
	made.root = markdown.Parser().Parse(text.NewReader(source))
	used := map[string]int{}
	_ = ast.Walk(made.root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		heading, ok := n.(*ast.Heading)
		if !entering || !ok {
			return ast.WalkContinue, nil
		}
		title := string(textOf(heading, source))
		if heading.Level == 1 && made.title == "" {
			made.title = title
		}
		id := slug(title)
		used[id]++
		if n := used[id]; n > 1 {
			id += "-" + strconv.Itoa(n-1)
		}
		made.anchors[id] = true
		heading.SetAttributeString("id", []byte(id))
		return ast.WalkSkipChildren, nil
	})
	made.links = linksOf(made.root, made)
	return made
}

// slug returns the ID that GitHub gives a heading.
func slug(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

// textOf returns the text of a node without markup.
func textOf(n ast.Node, source []byte) []byte {
	var out bytes.Buffer
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if n.Type() == ast.TypeBlock {
				out.WriteByte(' ')
			}
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			out.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				out.WriteByte(' ')
			}
		case *ast.String:
			out.Write(n.Value)
		case *ast.AutoLink:
			out.Write(n.Label(source))
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			out.Write(n.Lines().Value(source))
		}
		return ast.WalkContinue, nil
	})
	return bytes.TrimSpace(out.Bytes())
}

// linksOf returns the relative links below a node of a page, pictures included.
func linksOf(root ast.Node, p *page) []link {
	var links []link
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		var to []byte
		switch n := n.(type) {
		case *ast.Link:
			to = n.Destination
		case *ast.Image:
			to = n.Destination
		}
		if entering && to != nil {
			if target, anchor, ok := resolve(p.path, string(to)); ok {
				links = append(links, link{target, anchor, lineOf(n, p.source)})
			}
		}
		return ast.WalkContinue, nil
	})
	return links
}

// resolve returns the file in the repository to which a page links, if the link is a relative one.
func resolve(from, to string) (target, anchor string, ok bool) {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" {
		return "", "", false
	}
	if u.Path == "" {
		return from, u.Fragment, true
	}
	return path.Join(path.Dir(from), u.Path), u.Fragment, true
}

// lineOf returns the line in which the block of a node begins.
func lineOf(n ast.Node, source []byte) int {
	for ; n != nil; n = n.Parent() {
		if n.Type() == ast.TypeBlock && n.Lines() != nil && n.Lines().Len() > 0 {
			return 1 + bytes.Count(source[:n.Lines().At(0).Start], []byte("\n"))
		}
	}
	return 1
}

// repository is the public copy of the sources.
const repository = "https://github.com/zc-relay/zc-relay/blob/main/"

// render writes the content of a page. Links lead to where things are in the site.
func (t *tree) render(w io.Writer, p *page) error {
	_ = ast.Walk(p.root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			switch n := n.(type) {
			case *ast.Link:
				n.Destination = []byte(t.href(p, string(n.Destination)))
			case *ast.Image:
				n.Destination = []byte(t.href(p, string(n.Destination)))
			}
		}
		return ast.WalkContinue, nil
	})
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, p.source, p.root); err != nil {
		return err
	}
	// A wide table scrolls by itself, so that the page does not.
	scrolling := strings.NewReplacer("<table>", `<div class="table"><table>`,
		"</table>", "</table></div>", "<!-- raw HTML omitted -->\n", "")
	_, err := scrolling.WriteString(w, out.String())
	return err
}

// href returns a link of a page as it is in the site.
func (t *tree) href(p *page, to string) string {
	target, anchor, ok := resolve(p.path, to)
	if !ok {
		return to
	}
	if anchor != "" {
		anchor = "#" + anchor
	}
	switch {
	case t.pages[target] == p && anchor != "":
		return anchor
	case t.pages[target] != nil:
		return relative(p.url, t.pages[target].url) + anchor
	case t.files[target]:
		return relative(p.url, strings.TrimPrefix(target, "docs/"))
	}
	return repository + target + anchor
}

// relative returns the path from one file of the site to another.
func relative(from, to string) string {
	up := strings.Repeat("../", strings.Count(from, "/"))
	if up == "" {
		return to
	}
	if path.Dir(from) == path.Dir(to) {
		return path.Base(to)
	}
	return up + to
}

// code renders blocks of code, with colors by class so that light and dark pages can differ.
type code struct{}

func (code) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindFencedCodeBlock, renderCode)
}

func renderCode(
	w util.BufWriter, source []byte, n ast.Node, entering bool,
) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	block := n.(*ast.FencedCodeBlock)
	language, content := string(block.Language(source)), string(block.Lines().Value(source))
	lexer := lexers.Get(language)
	if lexer == nil || language == "" {
		fmt.Fprintf(w, "<pre tabindex=\"0\"><code>%s</code></pre>\n", html.EscapeString(content))
		return ast.WalkSkipChildren, nil
	}
	tokens, err := chroma.Coalesce(lexer).Tokenise(nil, content)
	if err != nil {
		return ast.WalkStop, err
	}
	formatter := chromahtml.New(chromahtml.WithClasses(true))
	return ast.WalkSkipChildren, formatter.Format(w, styles.Fallback, tokens)
}

// writeCodeStyles writes the colors of code, for light pages and for dark ones.
func writeCodeStyles(w *bytes.Buffer) error {
	formatter := chromahtml.New(chromahtml.WithClasses(true))
	for _, theme := range []struct{ before, selector, style, after string }{
		// Each theme colors what the other leaves alone, so neither applies beneath the other.
		{"@media (prefers-color-scheme: light) {\n", `:root:not([data-theme="dark"])`, "github", "}\n"},
		{"", `:root[data-theme="light"]`, "github", ""},
		{"@media (prefers-color-scheme: dark) {\n", `:root:not([data-theme="light"])`,
			"github-dark", "}\n"},
		{"", `:root[data-theme="dark"]`, "github-dark", ""},
	} {
		var css bytes.Buffer
		if err := formatter.WriteCSS(&css, styles.Get(theme.style)); err != nil {
			return err
		}
		fmt.Fprint(w, theme.before)
		for line := range strings.Lines(css.String()) {
			comment, rule, _ := strings.Cut(line, "*/ ")
			if !strings.Contains(comment, "Background") && strings.Contains(rule, ".chroma .") {
				fmt.Fprintf(w, "%s %s", theme.selector, rule) // the page has its own background
			}
		}
		fmt.Fprint(w, theme.after)
	}
	return nil
}
