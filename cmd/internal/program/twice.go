// SPDX-License-Identifier: Apache-2.0

package program

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// namesOneThing reports whether a flag's value names a thing, such as a file or an address. Of two
// values, users may want both. Of settings, such as timeouts, scripts override those of others.
func namesOneThing(v pflag.Value) bool {
	if words, is := v.(interface{ Words() []string }); is && len(words.Words()) > 0 {
		return false
	}
	return slices.Contains([]string{"string", "HOST:PORT", "IP"}, v.Type())
}

func isList(f *pflag.Flag) bool {
	if f == nil {
		return false
	}
	_, isSlice := f.Value.(pflag.SliceValue)
	return isSlice || f.Value.Type() == "list" // of package config
}

// checkTwice fails if a flag that names one thing is given twice, with different ones: the first
// would be dropped. It returns the command that arguments call, which finds other mistakes itself.
func checkTwice(root *cobra.Command, arguments []string) (*cobra.Command, error) {
	command, rest, err := root.Find(arguments)
	if err != nil || command.DisableFlagParsing {
		return root, nil
	}
	recorded := pflag.NewFlagSet(command.Name(), pflag.ContinueOnError)
	recorded.SetNormalizeFunc(command.Flags().GetNormalizeFunc())
	recorded.SetInterspersed(true)
	recorded.Usage = func() {}
	var twice error
	record := func(f *pflag.Flag) {
		if recorded.Lookup(f.Name) != nil {
			return
		}
		copied := *f
		copied.Value = &recorder{Value: f.Value, differ: func(first, second string) {
			if twice == nil && namesOneThing(f.Value) {
				twice = givenTwice(command, f.Name, first, second)
			}
		}}
		recorded.AddFlag(&copied)
	}
	command.LocalFlags().VisitAll(record)
	command.InheritedFlags().VisitAll(record)
	if err := recorded.Parse(rest); err != nil {
		return command, nil
	}
	return command, twice
}

func givenTwice(command *cobra.Command, name, first, second string) error {
	if list := command.Flags().Lookup(name + "s"); isList(list) {
		return Usagef("--%s is given twice: for several, use --%s %s,%s", name, list.Name, first,
			second)
	}
	return Usagef("--%s is given twice, with %q and %q: leave one of them", name, first, second)
}

// recorder takes every text for a value, and calls differ if it is not that of the first use.
type recorder struct {
	pflag.Value
	differ func(first, second string)
	first  string
	given  bool
}

// Set records a use.
func (r *recorder) Set(text string) error {
	if r.given && text != r.first {
		r.differ(r.first, text)
	}
	if !r.given {
		r.first, r.given = text, true
	}
	return nil
}
