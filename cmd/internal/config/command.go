// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/tokenfile"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// NewCommand returns the command that checks and shows a configuration. subject names the daemon,
// or the command that runs it, in a sentence.
func NewCommand[C Configuration](subject string, from *Source[C]) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration",
		Long: fmt.Sprintf(`The configuration comes from defaults, a YAML file, environment variables and flags.
Later sources override earlier ones. The variable of a key begins with %[1]s, and two
underscores separate sections: %[1]s__LOG__LEVEL is log.level.`,
			strings.TrimSuffix(from.prefix, levelSeparator)),
	}
	cmd.Annotations = map[string]string{variablePrefix: from.prefix}
	cmd.AddCommand(newConfigCheckCommand(from), newConfigDumpCommand(subject, from))
	return cmd
}

// variablePrefix is the annotation of the config command with the prefix of the daemon's variables,
// by which the manual knows whose configuration it is.
const variablePrefix = "variable-prefix"

// checkSchema names the format of checkReport. Fields may be added within a version.
const checkSchema = "zc-relay.config-check/1"

// checkReport is what config check prints as JSON.
type checkReport struct {
	Schema string `json:"schema"`
	File   string `json:"file"`
	Valid  bool   `json:"valid"`
	// Channels or Volumes is how many the file describes; missing if it is not valid.
	Channels *int     `json:"channels,omitempty"`
	Volumes  *int     `json:"volumes,omitempty"`
	Problems Problems `json:"problems"`
	// Warnings are no reason not to use the file.
	Warnings Problems `json:"warnings,omitempty"`
	// Shortage is set if this command's process may not open what the file allows.
	Shortage *Shortage `json:"descriptors,omitempty"`
}

// newConfigCheckCommand returns the command that checks a configuration file. As text it prints
// each of the first problems on a line of its own.
func newConfigCheckCommand[C Configuration](from *Source[C]) *cobra.Command {
	output, file := report.Text, ""
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file",
		Long: fmt.Sprintf(`check reads a configuration file, without environment and flags, and lists its
problems: the first 50, or all as JSON. It needs nothing but the file, and so works on any
machine; if the files of operations.web_config_file, admin_web_config_file, and
admin_token_file are on this machine, it checks them, too. It warns if the limits allow
more files than this shell allows. --config FILE means the same as FILE, - is standard
input, and no FILE means %s.`, from.UnitFile),
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := takeFile(cmd, arguments); err != nil {
				return err
			}
			if file == "" {
				file = from.FindUnitFile()
			}
			if file == "" {
				return program.Usagef("FILE is missing, and there is no %s", from.UnitFile)
			}
			c, err := from.read(Sources{File: file, Input: cmd.InOrStdin()})
			if file == StandardInput {
				file = "standard input"
			}
			var warnings Problems
			if err == nil {
				warnings, err = checkNamedFiles(c.Common().Operations)
			}
			if output == report.JSON {
				document := reportOf(file, c, err)
				document.Warnings = warnings
				return errors.Join(report.WriteJSON(cmd.OutOrStdout(), document),
					unusable(file, err))
			}
			if err != nil {
				var text string
				if problems, is := errors.AsType[Problems](err); is {
					text = problems.list()
				} else {
					text = err.Error()
				}
				fmt.Fprintln(cmd.ErrOrStderr(), text)
				return unusable(file, err)
			}
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
			}
			if shortage := ownShortage(c); shortage != nil {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "warning: a daemon that this shell starts cannot "+
					"serve all that the file allows: %s: %s\n", shortage, shortage.Remedy(from.unit()))
			}
			count, of := c.size()
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid; %s: %d\n", file, of, count)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, configFlag, "c", "", "the file to check")
	output.AddFlag(cmd.Flags())
	return cmd
}

const configFlag = "config"

// takeFile makes the operand, if there is one, the value of the flag for the file.
func takeFile(cmd *cobra.Command, operands []string) error {
	switch {
	case len(operands) == 0:
		return nil
	case cmd.Flags().Changed(configFlag):
		return program.Usagef("FILE and --config mean the same: give only one of them")
	}
	return program.Usage(cmd.Flags().Set(configFlag, operands[0]))
}

// unusable returns the error of the command if the file has problems.
func unusable(file string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s cannot be used", file)
}

// reportOf describes the outcome of a check.
func reportOf[C Configuration](file string, c C, err error) checkReport {
	r := checkReport{Schema: checkSchema, File: file, Valid: err == nil, Problems: Problems{}}
	if err != nil {
		if !errors.As(err, &r.Problems) {
			r.Problems = Problems{{Source: file, Text: program.Sentence(err)}}
		}
		return r
	}
	r.Shortage = ownShortage(c)
	count, of := c.size()
	if of == "channels" {
		r.Channels = &count
	} else {
		r.Volumes = &count
	}
	return r
}

func newConfigDumpCommand[C Configuration](subject string, from *Source[C]) *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "dump [FILE]",
		Short: "Print the effective configuration",
		Long: fmt.Sprintf(`dump prints the configuration that %s would use with the same file, variables and
flags. The output has every key and is a valid configuration file, as text and as JSON.
--config FILE means the same as FILE, and - is standard input. Without FILE and any of
these flags it reads %s, if that exists.`, subject, from.UnitFile),
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, operands []string) error {
			if err := takeFile(cmd, operands); err != nil {
				return err
			}
			if file := from.FindUnitFile(); file != "" && !from.HasFlags() {
				if err := cmd.Flags().Set(configFlag, file); err != nil {
					return err
				}
			}
			from.Input = cmd.InOrStdin()
			c, err := from.Load()
			if err != nil {
				return err
			}
			if output == report.Text {
				return c.Dump(cmd.OutOrStdout())
			}
			var text bytes.Buffer
			if err := c.Dump(&text); err != nil {
				return err
			}
			var document any
			if err := yaml.Unmarshal(text.Bytes(), &document); err != nil {
				return fmt.Errorf("convert the configuration to JSON: %w", err)
			}
			return report.WriteJSON(cmd.OutOrStdout(), document)
		},
	}
	from.AddFlags(cmd.Flags())
	output.AddFlag(cmd.Flags())
	return cmd
}

// addRelayFlags adds the flags of zc-relay, for LoadRelay. With a single channel, flags alone can
// describe everything.
func addRelayFlags(f *pflag.FlagSet) {
	addFlags(f, describeSection("", "",
		DefaultRelay().describe))
}

// addTargetFlags adds the flags of the target, for LoadTarget.
func addTargetFlags(f *pflag.FlagSet) {
	addFlags(f, describeSection("", "",
		DefaultTarget().describe))
}

func addFlags(f *pflag.FlagSet, root *node) {
	root.flags("", func(_ string, n *node) {
		n.addFlag(f, n.flag)
	})
	for _, n := range root.children {
		if n.list != nil && n.flag != "" {
			f.StringArray(n.flag, nil, nameValue(n.doc))
		}
	}
}

// addFlag adds the flag of a key under a name. Who knows the file tries the name of the key.
func (n *node) addFlag(f *pflag.FlagSet, name string) {
	flag := f.VarPF(n.flagValue(), name, n.short, n.doc)
	if n.value.Type() == "bool" {
		flag.NoOptDefVal = "true"
	}
	if key := strings.ReplaceAll(n.key, "_", "-"); key != name {
		program.AlsoCalled(flag, key)
	}
}

// nameValue makes the help call the value of a flag by its form, which doc mentions.
func nameValue(doc string) string {
	return strings.Replace(doc, volumeForm, "`"+volumeForm+"`", 1)
}

// flags calls visit for every key that has a flag. The path of a list element's key contains
// anyElement in place of the element's number.
func (n *node) flags(path string, visit func(path string, n *node)) {
	if n.value != nil && n.flag != "" {
		visit(path, n)
	}
	for _, c := range n.children {
		c.flags(join(path, c.key), visit)
	}
	if n.list != nil {
		n.list.prototype().flags(join(path, anyElement), visit)
	}
}

// flagValue returns the value of the node's flag. Flags of lists are repeatable.
func (n *node) flagValue() pflag.Value {
	switch {
	case isListType(n.value.Type()):
		return &repeated{Value: n.value}
	case n.seconds:
		return inSeconds{n.value}
	}
	return n.value
}

// inSeconds takes a number without a unit for a number of seconds.
type inSeconds struct{ Value }

// Set sets the duration.
func (v inSeconds) Set(text string) error { return v.Value.Set(argp.InSeconds(text)) }

// repeated joins the values of a repeated flag.
type repeated struct {
	Value
	texts []string
}

// Set adds a value.
func (r *repeated) Set(text string) error {
	if text == "" { // of a variable that is not set, for instance
		return errors.New("is empty: give it a value, or leave the flag out")
	}
	texts := append(slices.Clone(r.texts), text)
	if err := r.Value.Set(strings.Join(texts, ",")); err != nil {
		return err
	}
	r.texts = texts
	return nil
}

// isListType reports whether values of a type are lists, whose text has commas.
func isListType(kind string) bool { return kind == listType || kind == cpusType }

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
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s |\n", path, n.defaultText(), n.flagText(),
			n.reload, escape(n.doc))
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

// checkNamedFiles checks the files that a configuration names and that are on this machine.
func checkNamedFiles(c Operations) (warnings Problems, err error) {
	var problems Problems
	for _, f := range [][2]string{{"operations.web_config_file", c.WebConfigFile},
		{"operations.admin_web_config_file", c.AdminWebConfigFile}} {
		key, file := f[0], f[1]
		if file == "" {
			continue
		}
		web, err := webconfig.Read(file)
		var inFile webconfig.Problems
		switch {
		case err == nil:
			for _, w := range web.Warnings() {
				warnings = append(warnings, problemOf(w))
			}
		case errors.As(err, &inFile):
			for _, p := range inFile {
				problems = append(problems, problemOf(p))
			}
		case errors.Is(err, fs.ErrNotExist):
			warnings = append(warnings, notHere(key, file))
		default:
			problems = append(problems,
				Problem{Key: key, Value: quote(file), Text: status.Text(err)})
		}
	}
	if file := c.AdminTokenFile; file != "" {
		const key = "operations.admin_token_file"
		switch _, err := tokenfile.Read(file, tokenfile.How); {
		case errors.Is(err, fs.ErrNotExist):
			warnings = append(warnings, notHere(key, file))
		case err != nil:
			problems = append(problems,
				Problem{Key: key, Value: quote(file), Text: status.Text(err)})
		}
	}
	return warnings, problems.orNil()
}

func notHere(key, file string) Problem {
	return Problem{Key: key, Value: quote(file),
		Text: "was not checked, because it is not on this machine: the daemon does not start without it"}
}

// problemOf returns a problem in a web configuration file.
func problemOf(p webconfig.Problem) Problem {
	source := p.File
	if p.Line > 0 {
		source = fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return Problem{Source: source, Key: p.Field, Text: p.Text}
}
