// SPDX-License-Identifier: Apache-2.0

// Package argp lets programs run the command lines of the DOCA applications that they stand for. It
// adds what DOCA's argument parser (DOCA ARGP guide) gives every application: the generic flags,
// flags from a JSON file, and "[DPDK flags] --" in front.
package argp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
)

// Annotations of commands.
const (
	// adopted is on a root command that Adopt was called for. Its value is the name of the command
	// that may be left out, "" for the root itself.
	adopted = "argp.adopted"
	// implied is on a command whose name was left out.
	implied = "argp.implied"
)

// VolumeName is the name of the volume in command lines of the DOCA storage applications, whose
// only volume has no name.
const VolumeName = "storage"

// Adopt makes cmd accept the generic flags: --json, --sdk-log-level, and --version. cmd is root or
// a child of it, whose name may then be left out. Each list of synonyms holds flags with the same
// variable; one of them on the command line keeps the JSON file from setting another.
func Adopt(root, cmd *cobra.Command, synonyms ...[]string) {
	name := ""
	if cmd != root {
		name = cmd.Name()
		cmd.Version = root.Version
	}
	annotate(root, adopted, name)
	var file string
	var level sdkLevel
	f := cmd.Flags()
	f.StringVarP(&file, jsonFlag, "j", "",
		"read flags that are not given from a JSON file in the format of the DOCA applications")
	f.Var(&level, "sdk-log-level",
		"log level of the DOCA libraries, as for --log-level; only the providers doca have such a log")
	Mark(f, jsonFlag, "sdk-log-level")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if file != "" {
			ignored, err := loadFile(file, cmd.Flags(), synonyms)
			if err != nil {
				return err
			}
			if ignored {
				warnOfDPDK(cmd, "the section "+dpdkSection+" of "+file)
			}
		}
		if cmd.Flags().Changed("sdk-log-level") {
			number, err := logging.ParseDOCALevel(string(level))
			if err != nil {
				return err
			}
			providers.LogDOCA(number)
		}
		return nil
	}
}

// FlagsTitle is the title of marked flags in help.
const FlagsTitle = "As in the DOCA applications"

// Mark marks flags that only command lines of DOCA applications need.
func Mark(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = flags.SetAnnotation(name, FlagsTitle, nil) // fails for no flag that exists
	}
}

// IsMarked reports whether a flag is marked.
func IsMarked(f *pflag.Flag) bool {
	_, marked := f.Annotations[FlagsTitle]
	return marked
}

func annotate(cmd *cobra.Command, key, value string) {
	if cmd.Annotations == nil {
		cmd.Annotations = make(map[string]string)
	}
	cmd.Annotations[key] = value
}

// sdkLevel is a checked log level.
type sdkLevel string

func (l *sdkLevel) String() string { return string(*l) }

func (l *sdkLevel) Set(text string) error {
	if _, err := logging.ParseDOCALevel(text); err != nil {
		return err
	}
	*l = sdkLevel(text)
	return nil
}

func (l *sdkLevel) Type() string { return "level" }

// Arguments turns the command line of a DOCA application into one for root: it drops DPDK flags,
// and names the command that was left out. It returns every other command line as it is.
func Arguments(root *cobra.Command, arguments []string) []string {
	name, known := root.Annotations[adopted]
	if !known {
		return arguments
	}
	arguments = dropDPDKFlags(root, arguments)
	if name == "" || len(arguments) == 0 || !strings.HasPrefix(arguments[0], "-") ||
		slices.Contains([]string{"-h", "--help", "-v", "--version"}, arguments[0]) ||
		namesCommand(root, arguments) {
		return arguments
	}
	for _, cmd := range root.Commands() {
		if cmd.Name() == name {
			annotate(cmd, implied, "true")
		}
	}
	return append([]string{name}, arguments...)
}

// Implied reports whether the command line did not name cmd, as that of a DOCA application.
func Implied(cmd *cobra.Command) bool { return cmd.Annotations[implied] != "" }

// dropDPDKFlags drops what precedes "--", if flags follow it. Commands that take operands keep
// theirs.
func dropDPDKFlags(root *cobra.Command, arguments []string) []string {
	end := slices.Index(arguments, "--")
	if end < 0 || end+1 == len(arguments) || !strings.HasPrefix(arguments[end+1], "-") ||
		namesCommand(root, arguments[:end]) {
		return arguments
	}
	if end > 0 {
		warnOfDPDK(root, strings.Join(arguments[:end], " "))
	}
	return arguments[end+1:]
}

func warnOfDPDK(cmd *cobra.Command, what string) {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: ignored %s: these are DPDK flags, and it does not use DPDK\n",
		cmd.Root().Name(), what)
}

// namesCommand reports whether the arguments name a command below root.
func namesCommand(root *cobra.Command, arguments []string) bool {
	found, _, err := root.Find(arguments)
	return err == nil && found != root
}

// Timeout is a flag for a duration. As in the DOCA applications, a number without a unit is in
// seconds.
type Timeout time.Duration

// String returns the duration.
func (t *Timeout) String() string { return time.Duration(*t).String() }

// Set accepts a duration, or a number of seconds.
func (t *Timeout) Set(text string) error {
	d, err := time.ParseDuration(InSeconds(text))
	if err != nil {
		return fmt.Errorf("%q is neither a duration, for instance 500ms, nor a number of seconds",
			text)
	}
	*t = Timeout(d)
	return nil
}

// Type returns the word for help texts.
func (t *Timeout) Type() string { return "duration" }

// InSeconds adds the unit of seconds to a whole number, and returns any other text as it is.
func InSeconds(text string) string {
	if _, err := strconv.ParseUint(text, 10, 32); err != nil {
		return text
	}
	return text + "s"
}
