// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/internal/similar"
)

// Operands accepts exactly the operands with these names. If the last name ends with "...", it
// stands for one or more. A last name in brackets may be left out.
func Operands(names ...string) cobra.PositionalArgs {
	text, repeats := strings.CutSuffix(strings.Join(names, " "), "...")
	names = strings.Fields(text)
	required := names
	if last := len(names) - 1; strings.HasPrefix(names[last], "[") {
		required = names[:last]
	}
	return func(_ *cobra.Command, operands []string) error {
		switch {
		case len(operands) < len(required):
			lacking := required[len(operands):]
			verb := "is"
			if len(lacking) > 1 {
				verb = "are"
			}
			return fmt.Errorf("%s %s missing", strings.Join(lacking, " and "), verb)
		case len(operands) > len(names) && !repeats:
			return fmt.Errorf("unexpected operand %q behind %s", operands[len(names)],
				strings.Join(names, " "))
		}
		return nil
	}
}

// explainFlag says what is wrong with a flag.
func explainFlag(command *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var valueless *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(command, unknown)
	case errors.As(err, &invalid):
		return ExplainValue(err)
	case errors.As(err, &valueless):
		_, usage := pflag.UnquoteUsage(valueless.GetFlag())
		return fmt.Errorf("--%s needs a value: %s", valueless.GetFlag().Name, usage)
	}
	return err
}

func unknownFlag(command *cobra.Command, unknown *pflag.NotExistError) error {
	name := unknown.GetSpecifiedName()
	if operands := command.Flags().Args(); command.HasSubCommands() && len(operands) > 0 {
		return unknownChild(command, operands[0]) // the flag is probably one of that
	}
	if together := unknown.GetSpecifiedShortnames(); together != "" {
		if long := command.Flags().Lookup(together); len(together) > 1 && long != nil {
			return fmt.Errorf("unknown flag -%s: did you mean --%s?", together, long.Name)
		}
		return fmt.Errorf("unknown flag -%s%s", name, elsewhere(command, func(c *cobra.Command) bool {
			f := c.Flags().ShorthandLookup(name)
			return f != nil && !f.Hidden
		}))
	}
	if text := command.Annotations[explanationOf+name]; text != "" {
		return fmt.Errorf("unknown flag --%s: %s", name, text)
	}
	return fmt.Errorf("unknown flag --%s%s", name, suggest(command, name))
}

// elsewhere returns ": COMMAND has it" with the other commands of the program that have a flag, ""
// if none has it.
func elsewhere(command *cobra.Command, has func(*cobra.Command) bool) string {
	var found []string
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		if c != command && !c.Hidden && has(c) {
			found = append(found, strconv.Quote(c.CommandPath()))
		}
		for _, child := range c.Commands() {
			look(child)
		}
	}
	if command.HasSubCommands() && command.HasParent() {
		look(command) // whose commands are probably meant
	}
	if len(found) == 0 {
		look(command.Root())
	}
	switch most := maxCommands; {
	case len(found) == 0:
		return ""
	case len(found) == 1:
		return ": " + found[0] + " has it"
	case len(found) <= most+1: // there is no "1 more commands"
		last := len(found) - 1
		return ": " + strings.Join(found[:last], ", ") + " and " + found[last] + " have it"
	default:
		return fmt.Sprintf(": %s and %d more commands have it", strings.Join(found[:most], ", "),
			len(found)-most)
	}
}

// maxCommands bounds how many commands a message names.
const maxCommands = 4

// explanationOf begins the keys of annotations of commands with what to say of unknown flags.
const explanationOf = "explanation of --"

// ExplainFlag makes a command answer a flag that it does not have, and others do, with text.
func ExplainFlag(command *cobra.Command, name, text string) {
	if command.Annotations == nil {
		command.Annotations = make(map[string]string)
	}
	command.Annotations[explanationOf+name] = text
}

// otherName is the annotation of flags with another name that users may try.
const otherName = "other name"

// AlsoCalled makes the error for an unknown flag of another name name this flag.
func AlsoCalled(f *pflag.Flag, name string) {
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[otherName] = append(f.Annotations[otherName], name)
}

// suggest returns ": did you mean --NAME?" if a flag is also called name, or its name is similar,
// ": COMMAND has it" if another command or program has the flag, and otherwise "".
func suggest(command *cobra.Command, name string) string {
	best := ""
	command.Flags().VisitAll(func(f *pflag.Flag) {
		if slices.Contains(f.Annotations[otherName], name) {
			best = f.Name
		}
	})
	if best != "" {
		return ": did you mean --" + best + "?"
	}
	if f := command.Flags().Lookup("output"); f != nil && (name == "json" || name == "text") &&
		strings.Contains(f.Usage, name) {
		return ": write --output " + name
	}
	hint := elsewhere(command, func(c *cobra.Command) bool {
		f := c.Flags().Lookup(name)
		return f != nil && !f.Hidden
	})
	if hint == "" {
		hint = inPrograms(name)
	}
	if hint != "" {
		return hint // a similar flag means something else
	}
	if best = similar.Closest(name, FlagNames(command)); best == "" {
		best = continued(name, FlagNames(command))
	}
	if best != "" {
		return ": did you mean --" + best + "?"
	}
	return ""
}

// continued returns the only one of some words that continues a part at a hyphen, "" if there is
// not one.
func continued(part string, words []string) string {
	var found []string
	for _, word := range words {
		if strings.HasPrefix(word, part+"-") {
			found = append(found, word)
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// programFlags holds flags that users try in the wrong program, by a command that has them.
var programFlags = []struct{ command, flags string }{
	{"zc-relay run", "storage-server storage-servers volume representor command-channel-name " +
		"isolation io-timeout session-wait max-clients target-protocol state-directory " +
		"emulated-dir admin-listen metrics-listen data-security fabric-security tls-server-name " +
		"tls-cert tls-key tls-ca target-order import-device allow-any-user rdma-provider cpu"},
	{"zc-relay status", "admin admin-token-file"},
	{"target", "volume listen-address listen-port admin-listen metrics-listen data-security " +
		"fabric-security tls-allowed-name tls-cert tls-key tls-ca address-file volume-directory " +
		"volume-device strict rdma-provider cpu"},
	{"target status", "admin admin-token-file"},
	{"initiator bench", "rw block-size queue-depth queues runtime buffer-size emulated-dir"},
	{"initiator nbd", "socket allow-user listen export tls-allowed-name"},
	{"initiator get", "offset length preempt"},
	{"dma-copy", "file emulated-dir"},
}

// inPrograms returns with which commands of other programs a flag belongs, "" if with none.
func inPrograms(name string) string {
	var found []string
	for _, p := range programFlags {
		if slices.Contains(strings.Fields(p.flags), name) {
			found = append(found, strconv.Quote(p.command))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return ": it belongs to another program: " + strings.Join(found, ", ")
}

// checkHelp makes root's help fail for commands that do not exist. After a run, *wrong is why.
func checkHelp(root *cobra.Command) (wrong *error) {
	wrong = new(error)
	help := root.HelpFunc()
	root.SetHelpFunc(func(command *cobra.Command, arguments []string) {
		if operands := command.Flags().Args(); command.HasSubCommands() && len(operands) > 0 {
			*wrong = Usage(unknownChild(command, operands[0]))
			return
		}
		help(command, arguments)
	})
	root.InitDefaultHelpCmd()
	for _, help := range root.Commands() {
		if help.Name() == "help" {
			help.Run, help.RunE = nil, helpOf
		}
	}
	return wrong
}

// checkVersion fails for -v with a value: other programs have it for something else.
func checkVersion(arguments []string) error {
	i := slices.Index(arguments, "-v")
	if i < 0 || i+1 == len(arguments) || strings.HasPrefix(arguments[i+1], "-") ||
		slices.Contains(arguments[:i], "--") {
		return nil
	}
	return Usagef("unexpected operand %q: -v prints the version, and flags with a value are written "+
		"in full, for instance --volume", arguments[i+1])
}

// runsAlone is the annotation of a root that does something without a command, and what that is.
const runsAlone = "runs alone"

// RunsAlone makes the error for an unknown command say what the program does without one.
func RunsAlone(root *cobra.Command, text string) {
	if root.Annotations == nil {
		root.Annotations = make(map[string]string)
	}
	root.Annotations[runsAlone] = text
}

// helpOf prints the help of the command that words name.
func helpOf(help *cobra.Command, words []string) error {
	command := help.Root()
	for _, word := range words {
		i := slices.IndexFunc(command.Commands(), func(c *cobra.Command) bool {
			return c.Name() == word || c.HasAlias(word)
		})
		if i < 0 {
			return Usage(unknownChild(command, word))
		}
		command = command.Commands()[i]
	}
	return command.Help()
}

// FlagNames returns the names of the flags of a command that its help shows.
func FlagNames(command *cobra.Command) []string {
	var names []string
	command.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// sentences replaces what cobra says of flags that are missing or exclude each other, and of
// operands, for which cobra has no types.
var sentences = []struct {
	of      *regexp.Regexp
	explain func(match []string) string
}{
	{regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`),
		func(m []string) string { return "give " + flagList(m[1], " or ") }},
	{regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; ` +
		`\[(.*)\] were all set$`),
		func(m []string) string {
			return flagList(m[1], " and ") + " exclude each other: give one of them"
		}},
	{regexp.MustCompile(`^if any flags in the group \[(.*)\] are set they must all be set; ` +
		`missing \[(.*)\]$`),
		func(m []string) string {
			return "give " + flagList(m[2], " and ") + ", too: " + flagList(m[1], ", ") +
				" belong together"
		}},
	{regexp.MustCompile(`^required flag\(s\) (.*) not set$`),
		func(m []string) string {
			names := strings.NewReplacer(`"`, "", ",", "").Replace(m[1])
			return flagList(names, " and ") + missing
		}},
	{regexp.MustCompile(`^accepts at most (\d+) arg\(s\), received (\d+)$`),
		func(m []string) string { return "takes at most " + operandsOf(m[1]) + ", and got " + m[2] }},
	{regexp.MustCompile(`^requires at least (\d+) arg\(s\), only received (\d+)$`),
		func(m []string) string { return "needs at least " + operandsOf(m[1]) + ", and got " + m[2] }},
	{regexp.MustCompile(`^accepts between (\d+) and (\d+) arg\(s\), received (\d+)$`),
		func(m []string) string {
			return "takes " + m[1] + " to " + m[2] + " operands, and got " + m[3]
		}},
	{regexp.MustCompile(`^unknown command ("[^"]*") for "[^"]* [^"]*"$`),
		func(m []string) string { return "unexpected operand " + m[1] }},
}

const missing = " is missing"

func operandsOf(number string) string {
	if number == "1" {
		return "1 operand"
	}
	return number + " operands"
}

func flagList(names, separator string) string {
	list := strings.Fields(names)
	for i, name := range list {
		list[i] = "--" + name
	}
	return strings.Join(list, separator)
}

var unknownCommand = regexp.MustCompile(`^unknown command "([^"]*)" for "[^" ]*"`)

// unknownChild says that command has no child of this name, and which one was probably meant.
func unknownChild(command *cobra.Command, name string) error {
	if command.SuggestionsMinimumDistance <= 0 {
		command.SuggestionsMinimumDistance = 2
	}
	known := command.SuggestionsFor(name)
	if len(known) > 0 {
		return fmt.Errorf("unknown command %q: did you mean %s?", name, strings.Join(known, " or "))
	}
	children := childrenOf(command)
	if children == "" {
		return fmt.Errorf("unknown command %q: %q has no commands", name, command.CommandPath())
	}
	alone := ""
	if command.Annotations[runsAlone] != "" {
		alone = ", or none: " + command.Annotations[runsAlone]
	}
	return fmt.Errorf("unknown command %q: %s%s", name, children, alone)
}

const noCommand = "no command was given"

// childrenOf returns "there are" and the commands of a command, "" for none.
func childrenOf(command *cobra.Command) string {
	var names []string
	for _, child := range command.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "there are " + strings.Join(names, ", ")
}

// lacksCommand reports whether nothing but flags of all commands was given to one that may be left
// out.
func lacksCommand(command *cobra.Command, arguments []string) bool {
	for _, argument := range arguments {
		if name, isLong := strings.CutPrefix(argument, "--"); isLong {
			name, _, _ = strings.Cut(name, "=")
			if command.InheritedFlags().Lookup(name) == nil {
				return false
			}
		}
	}
	isOfAll := true
	command.Flags().Visit(func(f *pflag.Flag) {
		isOfAll = isOfAll && command.InheritedFlags().Lookup(f.Name) != nil
	})
	return isOfAll && command.Flags().NFlag() > 0 && len(command.Flags().Args()) == 0
}

// explainCall returns err, an error of a wrong call of command, in the words of this project.
func explainCall(command *cobra.Command, err error) error {
	if match := unknownCommand.FindStringSubmatch(err.Error()); match != nil {
		return unknownChild(command, match[1])
	}
	if raw, is := errors.AsType[*pflag.InvalidValueError](err); is {
		return errors.New(strings.Replace(err.Error(), raw.Error(), ExplainValue(raw).Error(), 1))
	}
	for _, s := range sentences {
		if match := s.of.FindStringSubmatch(err.Error()); match != nil {
			text := s.explain(match)
			name, found := strings.CutSuffix(strings.TrimPrefix(text, "--"), missing)
			if flag := command.Flags().Lookup(name); found && flag != nil && flag.Usage != "" {
				_, usage := pflag.UnquoteUsage(flag)
				text += ": " + usage
			}
			return errors.New(text + address(command, text))
		}
	}
	if hint := address(command, err.Error()); hint != "" {
		return errors.New(err.Error() + hint)
	}
	return err
}

// asTyped gives a flag that an error begins with the name that arguments have for it, where another
// name stands for it.
func asTyped(command *cobra.Command, arguments []string, err error) error {
	match := leadingFlag.FindStringSubmatch(err.Error())
	if match == nil {
		return err
	}
	for _, argument := range arguments {
		name, _, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		f := command.Flags().Lookup(name)
		if strings.HasPrefix(argument, "--") && f != nil && f.Name == match[1] && name != f.Name {
			return errors.New("--" + name + strings.TrimPrefix(err.Error(), "--"+f.Name))
		}
	}
	return err
}

var leadingFlag = regexp.MustCompile(`^--([a-z0-9-]+) `)

var unexpected = regexp.MustCompile(`^unexpected operand "([^"]*)"`)

// address returns ": write --admin ADDRESS" if text is about an operand that is the address of a
// daemon, for a command that takes that by a flag.
func address(command *cobra.Command, text string) string {
	match := unexpected.FindStringSubmatch(text)
	if match == nil || command.Flags().Lookup("admin") == nil {
		return ""
	}
	if _, err := netip.ParseAddrPort(match[1]); err != nil &&
		!strings.HasPrefix(match[1], "unix:") {
		return ""
	}
	return ": write --admin " + match[1]
}
