package config

import (
	"fmt"
	"io"
	"strings"
)

// WriteRelayTable writes a Markdown table of every key of zc-relay.
func WriteRelayTable(w io.Writer) { writeTable(w, DefaultRelay().describe) }

// WriteTargetTable writes a Markdown table of every key of the target.
func WriteTargetTable(w io.Writer) { writeTable(w, DefaultTarget().describe) }

func writeTable(w io.Writer, describe func(section)) {
	fmt.Fprintln(w, "| key | default | flag | reload | |")
	fmt.Fprintln(w, "|---|---|---|---|---|")
	describeSection("", "", describe).writeRows(w, "")
}

func (n *node) writeRows(w io.Writer, path string) {
	if n.value != nil {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s |\n", path, n.defaultText(), n.flagText(), n.reload, escape(n.doc))
	}
	for _, c := range n.children {
		c.writeRows(w, join(path, c.key))
	}
	if n.list != nil {
		n.list.prototype().writeRows(w, path+"[]")
	}
}

func (n *node) defaultText() string {
	text := n.value.String()
	switch {
	case n.required:
		return "required"
	case text == "" && isListType(n.value.Type()):
		return "`[]`"
	case text == "":
		return `""`
	}
	return "`" + text + "`"
}

func (n *node) flagText() string {
	if n.flag == "" {
		return ""
	}
	text := "`--" + n.flag + "`"
	if n.short != "" {
		text += ", `-" + n.short + "`"
	}
	return text
}

func escape(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
