// SPDX-License-Identifier: Apache-2.0

//go:build manual

package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

func init() { program.MorePages = append(program.MorePages, writePage) }

// writePage writes the manual page of a daemon's configuration file, PROGRAM.yaml(5), into a
// directory. Programs without a configuration file have none.
func writePage(root *cobra.Command, directory string) error {
	command, _, err := root.Find([]string{"config"})
	if err != nil || command.Annotations[variablePrefix] == "" {
		return nil
	}
	prefix, describe := command.Annotations[variablePrefix], DefaultRelay().describe
	if prefix == TargetPrefix {
		describe = DefaultTarget().describe
	}
	date, err := pageDate()
	if err != nil {
		return err
	}
	name := root.Name()
	var page bytes.Buffer
	fmt.Fprintf(&page, ".TH %s 5 %q %q zc-relay\n", roff(strings.ToUpper(name)+".YAML"), date,
		"zc-relay "+buildinfo.Version())
	fmt.Fprintf(&page, ".SH NAME\n%s \\- configuration of %s\n", roff(name+".yaml"), roff(name))
	fmt.Fprintf(&page, ".SH SYNOPSIS\n%s\n", roff("/etc/zc-relay/"+name+".yaml"))
	fmt.Fprintf(&page, ".SH DESCRIPTION\n%s\n", roff(fmt.Sprintf(`A YAML file. Keys are strict: an unknown or repeated key is an error. A key that is omitted has its default. An environment variable overrides the key that it names, and a flag overrides both: %sLOG__LEVEL is log.level, and two underscores separate sections. Lists are numbered from 0.`,
		prefix)))
	fmt.Fprintf(&page, ".PP\n%s\n", roff(`Sizes have units: 4KiB and 1MiB are powers of 1024, 4kB and 1MB powers of 1000. Durations have units: 500ms, 30s, 1m30s. "infinite" means no limit, where that is possible.`))
	fmt.Fprintf(&page, ".PP\n%s\n", roff(fmt.Sprintf(`"%s config check FILE" lists the errors in a file, and "%s config dump" prints every key with its value.`,
		name, name)))
	page.WriteString(".SH KEYS\n")
	describeSection("", "", describe).writeEntries(&page, "")
	fmt.Fprintf(&page, ".SH SEE ALSO\n\\fB%s\\fP(1), \\fB%s\\fP(1)\n", roff(name),
		roff(name+"-config"))
	return os.WriteFile(filepath.Join(directory, name+".yaml.5"), page.Bytes(), 0o644)
}

// writeEntries writes a paragraph for each key.
func (n *node) writeEntries(w io.Writer, path string) {
	if n.value != nil {
		facts := []string{n.value.Type()}
		if n.required {
			facts = append(facts, "required")
		} else {
			facts = append(facts, "default "+strings.Trim(n.defaultText(), "`"))
		}
		facts = append(facts, "takes effect: "+n.reload.String())
		if n.flag != "" {
			facts = append(facts, "--"+n.flag)
		}
		fmt.Fprintf(w, ".TP\n\\fB%s\\fP\n%s\n.br\n(%s)\n", roff(path), roff(n.doc),
			roff(strings.Join(facts, "; ")))
	}
	for _, c := range n.children {
		c.writeEntries(w, join(path, c.key))
	}
	if n.list != nil {
		n.list.prototype().writeEntries(w, path+"[]")
	}
}

// pageDate returns the date of $SOURCE_DATE_EPOCH, which makes packages reproducible, or today's.
func pageDate() (string, error) {
	now := time.Now()
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		now = time.Unix(seconds, 0)
	}
	return now.UTC().Format(time.DateOnly), nil
}

// roff escapes a text for a manual page.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", "", "'", `\(aq`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
